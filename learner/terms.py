"""The loss of a component over the tokens of one forward pass. The formulas stand in `learner.losses`.

Shapes: n response tokens of the pass; K vocabulary entries a token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from learner.losses.band import band
from learner.losses.cispo import cispo
from learner.losses.clip_loss import ClipLoss
from learner.losses.gspo import gspo
from learner.losses.mirror_descent import mirror_descent
from learner.losses.nll import nll
from learner.losses.ppo_clip import ppo_clip
from learner.losses.topk_divergence import topk_divergence
from learner.losses.topk_surrogate import topk_surrogate
from learner.objective import Component
from learner.step_options import StepOptions


@dataclass(frozen=True, eq=False)
class Tokens:
    """What a loss reads of the pass: `new` [n] with gradient and `old` [n], to which the ratio is; `owners` int64 [n];
    `new_entries` [n, K] with gradient, where a component looks at entries; `part` int64 [n]: places in the micro-batch.
    """

    new: Tensor
    old: Tensor
    owners: Tensor
    part: Tensor
    new_entries: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Term:
    """`loss` [n], 0 where masked, not yet weighed. `clipped_high`, `clipped_low`: tokens (entries, where the loss looks
    at entries) whose gradient the loss took away, of `judged`."""

    loss: Tensor
    judged: int
    clipped_high: int = 0
    clipped_low: int = 0


Surrogate = Callable[[Tokens, Tensor, Tensor, StepOptions], ClipLoss]


def _ppo_clip(tokens: Tokens, advantage: Tensor, mask: Tensor, options: StepOptions) -> ClipLoss:
    return ppo_clip(
        tokens.new,
        tokens.old,
        advantage,
        mask,
        clip_low=options.clip_low,
        clip_high=options.clip_high,
        dual_clip=options.dual_clip,
    )


def _gspo(tokens: Tokens, advantage: Tensor, mask: Tensor, options: StepOptions) -> ClipLoss:
    bounds = {"clip_low": options.clip_low, "clip_high": options.clip_high}
    return gspo(tokens.new, tokens.old, advantage, mask, tokens.owners, **bounds)


def _cispo(tokens: Tokens, advantage: Tensor, mask: Tensor, options: StepOptions) -> ClipLoss:
    bounds = {"clip_low": options.clip_low, "clip_high": options.clip_high}
    return cispo(tokens.new, tokens.old, advantage, mask, **bounds)


def _mirror(tokens: Tokens, advantage: Tensor, mask: Tensor, options: StepOptions) -> ClipLoss:
    loss = mirror_descent(tokens.new, tokens.old, advantage, mask, tau=options.mirror_tau)
    never = torch.zeros_like(mask)
    return ClipLoss(loss, torch.ones_like(loss), never, never)


def _band(tokens: Tokens, advantage: Tensor, mask: Tensor, options: StepOptions) -> ClipLoss:
    return band(tokens.new, tokens.old, advantage, mask, alpha=options.band_low, beta=options.band_high)


def _nll(tokens: Tokens, advantage: Tensor, mask: Tensor, options: StepOptions) -> ClipLoss:
    never = torch.zeros_like(mask)
    return ClipLoss(nll(tokens.new, mask, advantage), torch.ones_like(tokens.new), never, never)


SURROGATES: dict[str, Surrogate] = {
    "ppo_clip": _ppo_clip,
    "gspo": _gspo,
    "cispo": _cispo,
    "mirror": _mirror,
    "band": _band,
    "nll": _nll,
}
"""By the name in a recipe's `loss.surrogate`."""


def component_term(component: Component, tokens: Tokens, options: StepOptions) -> Term:
    """The loss of `component` on the tokens of a pass."""
    device = tokens.new.device

    def here(values: Tensor) -> Tensor:
        return values[tokens.part].to(device)

    taught = component.taught
    if taught is None:
        mask = here(component.mask)
        done = SURROGATES[options.surrogate](tokens, here(component.advantage), mask, options)
        return Term(done.loss, int(mask.sum()), int(done.clipped_high.sum()), int(done.clipped_low.sum()))
    assert taught.entries is not None
    assert taught.entry_advantage is not None
    assert taught.entry_mask is not None
    assert tokens.new_entries is not None
    mask = here(taught.entry_mask)
    if options.distillation.kind == "divergence":
        teacher = torch.where(mask, here(taught.entries.teacher), 0.0)
        divergence = topk_divergence(tokens.new_entries, teacher, mask, alpha=options.distillation.alpha)
        return Term(torch.where(here(component.mask), divergence, 0.0), int(mask.sum()))
    assert taught.entries.own is not None
    done = topk_surrogate(
        tokens.new_entries,
        here(taught.entries.own),
        here(taught.entry_advantage),
        mask,
        clip_low=options.clip_low,
        clip_high=options.clip_high,
        dual_clip=options.dual_clip,
    )
    return Term(done.loss, int(mask.sum()), int(done.clipped_high.sum()), int(done.clipped_low.sum()))
