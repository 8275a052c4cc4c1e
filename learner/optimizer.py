"""AdamW on float32 master weights of a model that computes in a lower precision.

bfloat16 has 8 bits of mantissa: an update below 1/256 of a weight would be rounded away, so the weights that learn are
float32 and the model holds their rounded copies. Gradients are summed in float32 as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from learner.ranks import total
from learner.sharding import own_part


class MasterAdamW:
    """AdamW (Loshchilov & Hutter 2019) over float32 values of `model`'s trainable parameters.

    `params`: the model's own; of a model that is cut among ranks, this rank's part of each, and so is everything else
    here, so that a step needs no other rank but for the gradient's norm. `masters`: the float32 values that learn; of a
    float32 model they are its parameters themselves and cost nothing. A bfloat16 parameter costs 2 bytes, its master,
    moments and summed gradient 16 more.
    """

    def __init__(
        self, model: nn.Module, *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float
    ) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self.params = [own_part(p) for p in self._parameters]
        self.masters = [p.detach().to(torch.float32) for p in self.params]
        self._gradients: list[Tensor | None] = [None] * len(self.params)
        # fused: one pass over the memory instead of a dozen, seven times faster on CPUs.
        self._adam = torch.optim.AdamW(self.masters, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Inside the `with`, a backward pass adds each gradient to the float32 sums as soon as it is whole, and frees
        it: the model's gradients never all live at once."""
        handles = [
            parameter.register_post_accumulate_grad_hook(partial(self._take, place))  # type: ignore[no-untyped-call]
            for place, parameter in enumerate(self._parameters)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def collect(self) -> None:
        """Add the model's gradients to the float32 sums and clear them: for backward passes that did not run inside
        `collecting`."""
        for place, parameter in enumerate(self._parameters):
            self._take(place, parameter)

    def discard(self) -> None:
        """Forget the collected gradients."""
        self._gradients = [None] * len(self.params)

    def gradient_norm(self) -> float:
        """L2 norm over all collected gradients, of all ranks; not finite where any of them is not."""
        norms = [float(torch.linalg.vector_norm(g)) for g in self._gradients if g is not None]
        own = math.fsum(norm * norm for norm in norms) if all(map(math.isfinite, norms)) else math.nan
        (squared,) = total([own])
        return math.sqrt(squared)

    def step(self, max_norm: float, norm: float) -> None:
        """One update with the collected gradients, scaled down to `max_norm` where their `norm` is above it; then the
        model gets the rounded copies and the gradients are forgotten."""
        scale = min(1.0, max_norm / norm) if norm > 0 else 1.0
        for master, gradient in zip(self.masters, self._gradients, strict=True):
            master.grad = gradient if gradient is None or scale == 1.0 else gradient.mul_(scale)
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        self.discard()
        self._copy_to_model()

    @contextmanager
    def lend(self, values: Sequence[Tensor]) -> Iterator[None]:
        """The model computes with `values`, one tensor a trainable parameter, inside the `with`, and afterwards with
        its own again, bit for bit. No gradient may be asked of what was computed before or inside."""
        own = [master.clone() if _shared(parameter) else master for parameter, master in self._pairs()]
        try:
            _fill(self.params, values)
            yield
        finally:
            _fill(self.params, own)

    def set_lr(self, lr: float) -> None:
        """The learning rate of the steps to come."""
        for group in self._adam.param_groups:
            group["lr"] = lr

    def state_dict(self) -> dict[str, Any]:
        """Masters and moments, exact."""
        return {"masters": self.masters, "adam": self._adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore exactly what `state_dict` gave, and the model's copies with it."""
        with torch.no_grad():
            for master, saved in zip(self.masters, state["masters"], strict=True):
                master.copy_(saved)
        self._adam.load_state_dict(state["adam"])
        self._copy_to_model()

    @torch.no_grad()
    def _copy_to_model(self) -> None:
        for parameter, master in self._pairs():
            if not _shared(parameter):
                parameter.copy_(master)

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.params, self.masters, strict=True)

    def _take(self, place: int, parameter: Tensor) -> None:
        if parameter.grad is None:
            return
        gradient, before = own_part(parameter.grad), self._gradients[place]
        if before is None:
            self._gradients[place] = gradient.to(torch.float32)
        else:
            before += gradient
        parameter.grad = None


def _shared(parameter: Tensor) -> bool:
    """Whether a parameter is its own master."""
    return parameter.dtype == torch.float32


@torch.no_grad()
def _fill(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)
