"""What goes wrong in real batches, over every loss: masked junk, nothing kept, empty responses, impossible tokens, huge
ratios. And the gradient of each against finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from learner.losses.band import band
from learner.losses.cispo import cispo
from learner.losses.dpo import dpo, response_gain
from learner.losses.gspo import gspo
from learner.losses.kl import kl_estimate
from learner.losses.mirror_descent import mirror_descent
from learner.losses.nll import nll
from learner.losses.ppo_clip import ppo_clip
from learner.losses.topk_divergence import topk_divergence
from learner.losses.topk_surrogate import topk_surrogate
from learner.losses.value import value_loss

JUNK = (math.nan, math.inf, -math.inf, 1.0)


@dataclass(frozen=True)
class Batch:
    """Log-probs `new` and `old`, `advantage`, all [N]; `mask` bool [N]; `owners` int64 [N]."""

    new: Tensor
    old: Tensor
    advantage: Tensor
    mask: Tensor
    owners: Tensor


def entries(values: Tensor) -> Tensor:
    """Two vocabulary entries for each token, together less than all."""
    return torch.stack([values - 0.7, values - 1.1], -1)


def with_entries(loss: Callable[..., Tensor]) -> Callable[[Batch], Tensor]:
    def of(batch: Batch) -> Tensor:
        return loss(entries(batch.new), entries(batch.old), entries(batch.advantage),
                    batch.mask[:, None].expand(-1, 2))  # fmt: skip

    return of


def divergence(alpha: float, tail: bool) -> Callable[[Batch], Tensor]:
    return with_entries(lambda new, old, _, mask: topk_divergence(new, old, mask, alpha=alpha, tail=tail))


def pairs(batch: Batch) -> Tensor:
    """One pair from two halves; a loss for every token only in name."""
    count = len(batch.new)
    halves = (torch.arange(count) >= count // 2).long()
    gain = response_gain(batch.new, batch.old, batch.mask, halves, 2)
    return dpo(gain[:1], gain[1:]).loss - math.log(2)  # 0 where nothing is kept, as the others


LOSSES: dict[str, Callable[[Batch], Tensor]] = {
    "ppo": lambda b: ppo_clip(b.new, b.old, b.advantage, b.mask, clip_low=0.2, clip_high=0.28).loss,
    "ppo, dual": lambda b: (
        ppo_clip(b.new, b.old, b.advantage, b.mask, clip_low=0.2, clip_high=0.28, dual_clip=3.0).loss
    ),
    "gspo": lambda b: gspo(b.new, b.old, b.advantage, b.mask, b.owners, clip_low=0.2, clip_high=0.28).loss,
    "cispo": lambda b: cispo(b.new, b.old, b.advantage, b.mask, clip_low=0.2, clip_high=0.28).loss,
    "mirror descent": lambda b: mirror_descent(b.new, b.old, b.advantage, b.mask, tau=0.5),
    "band": lambda b: band(b.new, b.old, b.advantage, b.mask, alpha=-0.5, beta=0.5).loss,
    "k1": lambda b: kl_estimate(b.new, b.old, b.mask, "k1"),
    "k2": lambda b: kl_estimate(b.new, b.old, b.mask, "k2"),
    "k3": lambda b: kl_estimate(b.new, b.old, b.mask, "k3"),
    "nll": lambda b: nll(b.new, b.mask, b.advantage),
    "value": lambda b: value_loss(b.new, b.old, b.advantage, b.mask, clip=0.5).loss,
    "value, free": lambda b: value_loss(b.new, b.old, b.advantage, b.mask, clip=None).loss,
    "top-k surrogate": with_entries(
        lambda new, old, advantage, mask: topk_surrogate(new, old, advantage, mask, clip_low=0.2, clip_high=0.28).loss
    ),
    "forward kl": divergence(0.0, True),
    "jensen-shannon": divergence(0.5, True),
    "reverse kl": divergence(1.0, True),
    "jensen-shannon, renormalised": divergence(0.5, False),
    "dpo": pairs,
}
STOPS_GRADIENT = {"gspo", "cispo"}
"""Their weight is a constant to the gradient, so finite differences of the value say nothing about it."""

each_loss = pytest.mark.parametrize("name", LOSSES)


def batch(count: int = 24, dtype: torch.dtype = torch.float64) -> Batch:
    generator = torch.Generator().manual_seed(5)

    def draw() -> Tensor:
        return torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)

    old = -draw().abs() - 0.1
    return Batch(
        new=(old + draw() / 3).clamp(max=-0.05),
        old=old,
        advantage=draw(),
        mask=torch.rand(count, generator=generator) > 0.25,
        owners=torch.arange(count) // 6,
    )


def run(name: str, given: Batch) -> tuple[Tensor, Tensor]:
    """The loss, and its gradient to the policy's log-probs."""
    new = given.new.clone().requires_grad_()
    loss = LOSSES[name](replace(given, new=new))
    (gradient,) = torch.autograd.grad(loss.sum(), new)
    return loss.detach(), gradient


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in STOPS_GRADIENT])
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    given = batch()
    assert torch.autograd.gradcheck(lambda new: LOSSES[name](replace(given, new=new)), (given.new.requires_grad_(),))


@pytest.mark.parametrize("name", sorted(STOPS_GRADIENT))
def test_gradients_that_stop_at_the_weight_are_those_of_the_weighed_log_prob(name: str) -> None:
    """-weight A per token: finite differences of the loss with the weight held."""
    given = batch()
    _, gradient = run(name, given)
    if name == "cispo":
        weight = (given.new - given.old).exp().clamp(0.8, 1.28)
    else:
        sums = torch.zeros(4, dtype=torch.float64).index_add(0, given.owners, (given.new - given.old) * given.mask)
        counts = torch.zeros(4, dtype=torch.float64).index_add(0, given.owners, given.mask.double())
        ratio = (sums / counts).exp()[given.owners]
        weight = ratio * ~(((given.advantage > 0) & (ratio > 1.28)) | ((given.advantage < 0) & (ratio < 0.8)))
    torch.testing.assert_close(gradient, -weight * given.advantage * given.mask)


@each_loss
@pytest.mark.parametrize("junk", JUNK)
def test_what_stands_at_a_masked_place_reaches_neither_loss_nor_gradient(name: str, junk: float) -> None:
    clean = batch()
    fill = torch.full_like(clean.new, junk)
    dirty = replace(clean, **{part: torch.where(clean.mask, getattr(clean, part), fill)
                              for part in ("new", "old", "advantage")})  # fmt: skip
    loss, gradient = run(name, clean)
    dirty_loss, dirty_gradient = run(name, dirty)
    torch.testing.assert_close(dirty_loss, loss)
    torch.testing.assert_close(dirty_gradient, gradient)
    if name != "dpo":
        assert loss[~clean.mask].tolist() == [0.0] * int((~clean.mask).sum())
    assert gradient[~clean.mask].tolist() == [0.0] * int((~clean.mask).sum())


@each_loss
def test_nothing_kept_is_a_loss_of_0_without_gradient(name: str) -> None:
    given = batch()
    junk = torch.full_like(given.new, math.nan)
    loss, gradient = run(name, Batch(junk, junk, junk, torch.zeros_like(given.mask), given.owners))
    assert loss.abs().max() == 0
    assert gradient.abs().max() == 0


@each_loss
def test_an_empty_response_is_a_loss_of_0(name: str) -> None:
    none = torch.zeros(0, dtype=torch.float64)
    loss, gradient = run(name, Batch(none, none, none, none.bool(), none.long()))
    assert float(loss.sum()) == 0
    assert len(gradient) == 0


@each_loss
@pytest.mark.parametrize("where", ["new", "old", "both"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_token_held_for_impossible_leaves_everything_finite(name: str, where: str, dtype: torch.dtype) -> None:
    """A log-prob of -inf. A critic's value is none, so the critic's loss is not asked."""
    if name.startswith("value"):
        return
    given = batch(dtype=dtype)
    impossible = given.new.clone()
    impossible[given.mask.nonzero()[0]] = -math.inf
    parts = {"new": ("new",), "old": ("old",), "both": ("new", "old")}[where]
    loss, gradient = run(name, replace(given, **{
        part: torch.where(impossible == -math.inf, impossible, getattr(given, part)) for part in parts
    }))  # fmt: skip
    assert loss.isfinite().all()
    assert gradient.isfinite().all()


@each_loss
@pytest.mark.parametrize("gap", [200.0, -200.0, 30.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_huge_ratios_leave_everything_finite_in_float32(name: str, gap: float, sign: float) -> None:
    given = batch(dtype=torch.float32)
    low, high = torch.full_like(given.new, -0.1 - abs(gap)), torch.full_like(given.new, -0.1)
    new, old = (high, low) if gap > 0 else (low, high)
    loss, gradient = run(name, replace(given, new=new, old=old, advantage=sign * given.advantage.abs()))
    assert loss.isfinite().all()
    assert gradient.isfinite().all()


@each_loss
def test_float32_says_the_same_as_float64(name: str) -> None:
    double, single = run(name, batch()), run(name, batch(dtype=torch.float32))
    for exact, rounded in zip(double, single, strict=True):
        assert rounded.dtype == torch.float32
        torch.testing.assert_close(rounded.double(), exact, rtol=1e-4, atol=1e-5)


@each_loss
def test_no_gradient_reaches_what_was_before_the_step(name: str) -> None:
    given = batch()
    old = given.old.clone().requires_grad_()
    new = given.new.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(LOSSES[name](replace(given, new=new, old=old)).sum(), old, allow_unused=True)
    assert gradient is None or gradient.abs().max() == 0


@pytest.mark.parametrize("name", ["value", "value, free", "nll"])
def test_no_gradient_reaches_a_return_or_a_weight(name: str) -> None:
    """A critic's returns hold its own values; they are a target, not something to be moved."""
    given = batch()
    target, new = given.advantage.clone().requires_grad_(), given.new.clone().requires_grad_()
    loss = LOSSES[name](replace(given, new=new, advantage=target)).sum()
    (gradient,) = torch.autograd.grad(loss, target, allow_unused=True)
    assert gradient is None


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "dpo"])
def test_a_sequences_losses_do_not_depend_on_the_others(name: str) -> None:
    given = batch()
    whole, _ = run(name, given)
    parts = []
    for owner in range(4):
        rows = given.owners == owner
        parts.append(run(name, Batch(given.new[rows], given.old[rows], given.advantage[rows], given.mask[rows],
                                     given.owners[rows] - owner))[0])  # fmt: skip
    torch.testing.assert_close(torch.cat(parts), whole)
