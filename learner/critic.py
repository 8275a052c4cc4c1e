"""The critic: what a response is worth before each of its tokens, for GAE (Schulman et al. 2016, 1506.02438).

Value t is read at the hidden state that predicts token t, so it knows the prompt and the tokens before t, not t itself.

`head`: one linear layer in float32 on the policy's last hidden states. Its gradient does not reach the policy. The
hidden states of the pass that gives the values are kept, so learning costs no further pass; 2 bytes x H a response
token in bfloat16.
`model`: a decoder of its own, begun as the base model, and the same head on it. As large as the policy, and trained as
it is.

A fresh head is zero: with values of 0 GAE at lambda = 1 gives the plain return, so a fresh critic misleads nobody.
With `warmup_batches` the first micro-batches train the critic alone.

Shapes: N response tokens of the micro-batch, n of one forward pass, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from learner.collate import Forward
from learner.logprobs import response_hidden
from learner.losses.value import value_loss
from learner.metrics import Metrics, finite
from learner.optimizer import MasterAdamW
from learner.ranks import filled, total
from learner.sharding import shard, with_weights


@dataclass(frozen=True, kw_only=True)
class CriticOptions:
    """Of a recipe's critic. `clip`: see `learner.losses.value`. `steps`: of its optimizer, each micro-batch."""

    kind: Literal["head", "model"] = "head"
    lr: float = 1e-4
    clip: float | None = 0.2
    steps: int = 1
    warmup_batches: int = 0
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    max_grad_norm: float = 1.0


class Critic:
    """A value function with its optimizer.

    Args:
        model: causal language model of transformers whose decoder `model.model` gives the hidden states: the policy's
            own for a head, one of the critic's own for a model, which then learns and needs no head of its own.
        options: see `CriticOptions`.
    """

    def __init__(self, model: Any, options: CriticOptions) -> None:
        self.options = options
        self._model = model.eval()
        device = next(model.model.parameters()).device
        self._head = nn.Linear(model.config.get_text_config().hidden_size, 1, device=device, dtype=torch.float32)
        nn.init.zeros_(self._head.weight)
        nn.init.zeros_(self._head.bias)
        shard(self._head)
        self._own = options.kind == "model"
        learning = nn.ModuleList([model.model, self._head] if self._own else [self._head])
        self._optimizer = MasterAdamW(learning, lr=options.lr, betas=options.betas, eps=options.eps, weight_decay=0.0)
        self._batches = 0
        self._forwards: list[Forward] = []
        self._features: list[Tensor] = []

    @property
    def warming(self) -> bool:
        """Whether the micro-batch in hand trains the critic alone."""
        return self._batches < self.options.warmup_batches

    @torch.no_grad()
    def values(self, forwards: Sequence[Forward], tokens: int) -> Tensor:
        """Values float32 [tokens] on the CPU, 0 for tokens that are in no forward pass, before any learning.
        `forwards`: this rank's share; the values are every rank's."""
        self._forwards, self._features = list(forwards), []
        values_N = torch.zeros(tokens)
        for forward in forwards:
            hidden_nH = response_hidden(self._model, forward)
            values_N[forward.flat] = self._value(hidden_nH).cpu()
            if not self._own:
                self._features.append(hidden_nH)
        return filled(values_N, forwards)

    def learn(self, values_N: Tensor, returns_N: Tensor, mask_N: Tensor, weight_N: Tensor) -> Metrics:
        """Take `options.steps` steps towards `returns_N` on the forward passes that `values` was last asked for.

        `values_N` as `values` gave them, `mask_N` bool, `weight_N` float32: the loss is the sum of weight x token loss.
        A step whose gradient is not finite is not taken, and no other follows. Call it only where the policy's own step
        was taken, so that a skipped micro-batch leaves no trace.
        """
        metrics = value_metrics(values_N, returns_N, mask_N)
        for number in range(self.options.steps):
            loss, clipped = self._backward(values_N, returns_N, mask_N, weight_N)
            norm = self._optimizer.gradient_norm()
            if number == 0:
                metrics |= {"value_loss": finite(loss), "critic_gradient_norm": finite(norm)}
            metrics["value_clip_fraction"] = clipped / float(mask_N.sum()) if mask_N.any() else None
            if finite(norm) is None or finite(loss) is None:
                self._optimizer.discard()
                break
            self._optimizer.step(self.options.max_grad_norm, norm)
        self._batches += 1
        self._forwards, self._features = [], []
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next micro-batch depends on, exact."""
        return {"batches": self._batches, "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore exactly what `state_dict` gave."""
        self._batches = state["batches"]
        self._optimizer.load_state_dict(state["optimizer"])

    def _value(self, hidden_nH: Tensor) -> Tensor:
        value_n1: Tensor = with_weights(self._head, lambda: self._head.forward(hidden_nH.float()))
        return value_n1[:, 0]

    def _backward(self, values_N: Tensor, returns_N: Tensor, mask_N: Tensor, weight_N: Tensor) -> tuple[float, float]:
        """Collect the gradient; the loss, and the number of tokens whose change the clip stopped."""
        summed, clipped = 0.0, 0.0
        for place, forward in enumerate(self._forwards):
            hidden_nH = response_hidden(self._model, forward) if self._own else self._features[place]
            value_n = self._value(hidden_nH)
            old_n, return_n, mask_n, weight_n = (
                each[forward.flat].to(value_n.device) for each in (values_N, returns_N, mask_N, weight_N)
            )
            done = value_loss(value_n, old_n, return_n, mask_n, clip=self.options.clip)
            loss = (done.loss * weight_n).sum()
            with self._optimizer.collecting():
                loss.backward()  # type: ignore[no-untyped-call]
            summed += float(loss.detach())
            clipped += float(done.clipped.sum())
        summed, clipped = total([summed, clipped])
        return summed, clipped


def value_metrics(values_N: Tensor, returns_N: Tensor, mask_N: Tensor) -> Metrics:
    """Means, and the explained variance 1 - Var(R - V) / Var(R): 1 is perfect, 0 no better than the mean return, below
    0 worse. None where every return is the same."""
    values, returns = values_N[mask_N].double(), returns_N[mask_N].double()
    if not len(values):
        return {"value_mean": None, "return_mean": None, "explained_variance": None}
    spread = float(returns.var(unbiased=False))
    return {
        "value_mean": finite(float(values.mean())),
        "return_mean": finite(float(returns.mean())),
        "explained_variance": finite(1 - float((returns - values).var(unbiased=False)) / spread) if spread else None,
    }
