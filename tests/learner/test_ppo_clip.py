"""The clipped surrogate: by hand, by numeric gradients, and against six peers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from vectors import case, inputs, matrix, needs_reference, same

from learner.importance import LOG_RATIO_BOUND
from learner.losses.clip_loss import ClipLoss
from learner.losses.ppo_clip import ppo_clip

NAMES = ("openrlhf_eps0.2_0.2", "trl_eps0.2_0.2", "verl_eps0.2_0.2", "slime_eps0.2_0.28", "openrlhf_eps0.2_0.28",
         "trl_eps0.2_0.28", "slime_eps0.2_0.28_dual3", "openrlhf_eps0.2_0.28_dual3", "trl_eps0.2_0.28_dual3",
         "areal_eps0.2_0.28", "areal_eps0.2_0.28_dual3")  # fmt: skip


def ratio_of(*ratios: float, advantage: float, clip_high: float = 0.28, dual_clip: float | None = None) -> ClipLoss:
    new = torch.tensor(ratios, dtype=torch.float64).log() - 1
    ones = torch.ones_like(new)
    return ppo_clip(new, -ones, advantage * ones, ones.bool(), clip_low=0.2, clip_high=clip_high, dual_clip=dual_clip)


def test_a_good_token_gains_nothing_beyond_the_upper_bound() -> None:
    result = ratio_of(0.5, 1.0, 1.25, 2.0, advantage=2.0)
    same(result.loss, [-1.0, -2.0, -2.5, -2.56])
    assert result.clipped_high.tolist() == [False, False, False, True]
    assert not result.clipped_low.any()


def test_a_bad_token_gains_nothing_below_the_lower_bound_and_the_dual_clip_bounds_its_loss() -> None:
    same(ratio_of(0.5, 1.0, 5.0, advantage=-1.0).loss, [0.8, 1.0, 5.0])
    same(ratio_of(0.5, 1.0, 5.0, advantage=-1.0, dual_clip=3.0).loss, [0.8, 1.0, 3.0])
    assert ratio_of(0.5, 1.0, 5.0, advantage=-1.0).clipped_low.tolist() == [True, False, False]


def test_what_stands_at_a_masked_place_reaches_neither_loss_nor_gradient() -> None:
    for junk in (math.nan, math.inf, -math.inf, 1.0):
        new = torch.tensor([-0.4, junk], requires_grad=True)
        old, advantage = torch.tensor([-0.5, math.nan]), torch.tensor([1.0, math.nan])
        mask = torch.tensor([True, False])
        result = ppo_clip(new, old, advantage, mask, clip_low=0.2, clip_high=0.28)
        result.loss.sum().backward()
        assert result.loss.tolist() == pytest.approx([-math.exp(0.1), 0.0])
        assert new.grad is not None
        assert new.grad.tolist() == pytest.approx([-math.exp(0.1), 0.0])


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("gap", [200.0, -200.0])
def test_a_huge_ratio_leaves_loss_and_gradient_finite(gap: float, advantage: float) -> None:
    new = torch.tensor([gap - 300, -1.0], requires_grad=True)
    old, mask = torch.tensor([-300.0, -1.0]), torch.tensor([True, True])
    result = ppo_clip(new, old, torch.full((2,), advantage), mask, clip_low=0.2, clip_high=0.28)
    result.loss.sum().backward()
    assert new.grad is not None
    assert result.loss.isfinite().all()
    assert new.grad.tolist() == [0.0, -advantage]


@pytest.mark.parametrize("dual_clip", [None, 3.0])
def test_gradients_are_those_of_finite_differences(dual_clip: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    new = (torch.randn(40, dtype=torch.float64, generator=generator) - 1).requires_grad_()
    old = torch.randn(40, dtype=torch.float64, generator=generator) - 1
    advantage = torch.randn(40, dtype=torch.float64, generator=generator)
    mask = torch.rand(40, generator=generator) > 0.2

    def loss(values: Tensor) -> Tensor:
        return ppo_clip(values, old, advantage, mask, clip_low=0.2, clip_high=0.28, dual_clip=dual_clip).loss.sum()

    assert torch.autograd.gradcheck(loss, (new,))


def of_batch(options: dict[str, Any], new: Tensor) -> tuple[ClipLoss, Tensor]:
    batch = inputs("01_ppo_clip", "batch")
    mask = matrix(batch["mask"]).bool()
    low = options.get("eps_low", options.get("clip_ratio_low", options.get("eps_clip")))
    high = options.get("eps_high", options.get("clip_ratio_high", options.get("eps_clip_higher")))
    dual = options.get("dual_clip", options.get("delta", options.get("c_clip")))
    old, advantage = matrix(batch["old_log_probs"]), matrix(batch["advantages"])
    return ppo_clip(new, old, advantage, mask, clip_low=low, clip_high=high, dual_clip=dual), mask


@needs_reference
@pytest.mark.parametrize("title", NAMES)
def test_peers_agree(title: str) -> None:
    expected = case("01_ppo_clip", title)
    new = matrix(inputs("01_ppo_clip", "batch")["log_probs"]).requires_grad_()
    result, mask = of_batch(expected["inputs"], new)
    loss = result.loss.sum() / mask.sum()
    loss.backward()
    same(loss.detach(), expected["token_mean_loss"])
    if "token_loss" in expected:
        same(result.loss.detach(), expected["token_loss"])
    clipped = result.clipped_low | result.clipped_high
    for flags in ("token_clipped", "clip_mask"):
        if flags in expected:
            same(clipped.double(), expected[flags])
    if "clipfrac" in expected:
        same(clipped.sum() / mask.sum(), expected["clipfrac"], rtol=1e-6)
    if "clip_ratio_low_mean" in expected:  # TRL's flags pass through float32
        same(result.clipped_low.sum() / mask.sum(), expected["clip_ratio_low_mean"], rtol=1e-6)
        same(result.clipped_high.sum() / mask.sum(), expected["clip_ratio_high_mean"], rtol=1e-6)
    if "grad_log_probs" in expected:
        assert new.grad is not None
        same(new.grad, expected["grad_log_probs"])


@needs_reference
def test_peers_agree_in_float32() -> None:
    expected = case("01_ppo_clip", "slime_eps0.2_0.28_dual3_float32")
    batch = inputs("01_ppo_clip", "batch")
    new, old, advantage = (matrix(batch[key]).float() for key in ("log_probs", "old_log_probs", "advantages"))
    mask = matrix(batch["mask"]).bool()
    result = ppo_clip(new, old, advantage, mask, clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    same(result.loss, expected["token_loss"], rtol=1e-5, atol=1e-6)


@needs_reference
def test_at_the_borders() -> None:
    expected = case("01_ppo_clip", "slime_border_neg")
    given = {key: matrix(expected["inputs"][key]) for key in ("old_log_probs", "log_probs", "advantages")}
    new = given["log_probs"].requires_grad_()
    result = ppo_clip(
        new, given["old_log_probs"], given["advantages"], torch.ones_like(new).bool(),
        clip_low=0.2, clip_high=0.28, dual_clip=3.0,
    )  # fmt: skip
    result.loss.sum().backward()
    same(result.loss.detach(), expected["token_loss"])
    clear = [0, 3, 4, 5]  # the others lie on a border, where rounding decides
    assert new.grad is not None
    same(result.clipped_low[:, clear].double(), matrix(expected["token_clipped"])[:, clear].tolist())
    same(new.grad[:, clear], matrix(expected["grad_of_sum_log_probs"])[:, clear].tolist())


@needs_reference
def test_log_ratios_are_bounded_as_verl_does_and_areal_does_not() -> None:
    expected = case("01_ppo_clip", "verl_extreme")
    given = {key: matrix(expected["inputs"][key]) for key in ("old_log_probs", "log_probs", "advantages")}
    mask = torch.ones(1, 2).bool()
    ours = ppo_clip(
        given["log_probs"], given["old_log_probs"], given["advantages"], mask, clip_low=0.2, clip_high=0.28
    ).loss.mean()
    same(ours, expected["token_mean_loss"])
    assert LOG_RATIO_BOUND == 20.0
    unbounded = case("01_ppo_clip", "areal_extreme")["token_mean_loss"]
    assert unbounded == pytest.approx((math.exp(29) + 0.8) / 2)
    assert unbounded > 1000 * float(ours)
