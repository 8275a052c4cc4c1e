"""Other weights than the policy's own that a step may need: a reference, a teacher.

A companion is no second model. It is a second set of values for the policy's trainable parameters, lent to the policy's
own module for a pass without gradient and taken back from the master weights, bit for bit. So a companion costs its
values alone, and under LoRA only the adapters' (the reference is then the base model, which the policy holds anyway).
Lending copies every trainable parameter twice, which takes a thousandth of the pass that it is for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from torch import Tensor

from learner.optimizer import MasterAdamW
from learner.samples import TrainingSample


class Companion(Protocol):
    """What a step asks of a reference or teacher."""

    def model(self) -> AbstractContextManager[Any]:
        """The model with the companion's weights, for passes without gradient inside the `with`. No graph of the policy
        may be alive there: its parameters hold other values meanwhile."""

    def after_step(self, samples: Sequence[TrainingSample]) -> None:
        """The policy has learned from `samples`: its masters are those after the step. Not called where no step was
        taken."""

    def state_dict(self) -> dict[str, Any]:
        """All that cannot be had from the base model again, exact."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore exactly what `state_dict` gave."""


class Lent:
    """A companion's values for the policy's own module.

    `values`: one tensor for each trainable parameter of `module`, in the order of `module.parameters()`.
    """

    def __init__(self, module: Any, optimizer: MasterAdamW) -> None:
        self._module, self._optimizer = module, optimizer

    @contextmanager
    def holding(self, values: Sequence[Tensor]) -> Iterator[Any]:
        """The module with `values`; afterwards it holds the policy's own again, also after an error."""
        with self._optimizer.lend(values):
            yield self._module

    def masters(self) -> list[Tensor]:
        """The policy's own values now, float32; not copies."""
        return self._optimizer.masters

    def rounded(self) -> list[Tensor]:
        """Copies of the policy's own values now, as it computes with them and as a server gets them."""
        return [parameter.detach().clone() for parameter in self._optimizer.params]


class Reference:
    """A frozen companion, such as the base model that a KL term measures to. `values` as in `Lent`; by default the
    policy's own now."""

    def __init__(self, lent: Lent, values: Sequence[Tensor] | None = None) -> None:
        self._lent = lent
        self._values = lent.rounded() if values is None else list(values)

    def model(self) -> AbstractContextManager[Any]:
        """The policy's module with the frozen values."""
        return self._lent.holding(self._values)

    def after_step(self, samples: Sequence[TrainingSample]) -> None:
        """Nothing: it is frozen."""

    def state_dict(self) -> dict[str, Any]:
        """Empty: the base model holds it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""


class FrozenModel:
    """A frozen companion that is a model of its own, where it is not of the policy's architecture."""

    def __init__(self, model: Any) -> None:
        self._model = model.eval()

    @contextmanager
    def model(self) -> Iterator[Any]:
        """The model."""
        yield self._model

    def after_step(self, samples: Sequence[TrainingSample]) -> None:
        """Nothing: it is frozen."""

    def state_dict(self) -> dict[str, Any]:
        """Empty: it is read from where it came."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""
