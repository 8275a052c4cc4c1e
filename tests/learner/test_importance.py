"""Truncated importance weights: by hand, and against the token forms of seven peers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from vectors import case, flat, inputs, matrix, needs_reference, same

from learner.importance import MismatchSpec, log_ratio, mismatch_weights
from learner.losses.ppo_clip import ppo_clip

FILE = "07_is_correction"


def truncated_weight(proximal: Tensor, behaviour: Tensor, mask: Tensor, cap: float) -> Tensor:
    """Of tokens in any layout, each looked at alone."""
    tokens = [each.reshape(-1) for each in (proximal, behaviour, mask)]
    spec = MismatchSpec(kind="truncate", high=cap)
    weight, kept = mismatch_weights(*tokens, torch.zeros_like(tokens[2], dtype=torch.long), spec)
    assert torch.equal(kept, tokens[2])
    return weight.reshape(proximal.shape)


def test_by_hand() -> None:
    proximal, behaviour = torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-2.0, -1.0, -0.5])
    weight = truncated_weight(proximal, behaviour, torch.ones(3).bool(), 2.0)
    assert weight.tolist() == pytest.approx([2.0, 1.0, math.exp(-0.5)])


def test_masked_places_weigh_one_and_no_gradient_flows() -> None:
    proximal = torch.tensor([math.nan, -1.0], requires_grad=True)
    weight = truncated_weight(proximal, torch.tensor([-1.0, -1.0]), torch.tensor([False, True]), 2.0)
    assert weight.tolist() == [1.0, 1.0]
    assert not weight.requires_grad


def test_a_token_that_the_engine_held_for_impossible_weighs_the_cap() -> None:
    """vLLM writes -inf as -9999."""
    weight = truncated_weight(torch.tensor([-1.0]), torch.tensor([-9999.0]), torch.tensor([True]), 2.0)
    assert weight.tolist() == [2.0]


def test_the_log_ratio_is_held_within_20() -> None:
    given = torch.tensor([-1.0, -100.0, -1.0]), torch.tensor([-100.0, -1.0, -1.25])
    assert log_ratio(*given, torch.ones(3).bool()).tolist() == [20.0, -20.0, 0.25]


def test_a_cap_below_1_weighs_every_token_less() -> None:
    assert truncated_weight(torch.zeros(1), torch.zeros(1), torch.ones(1).bool(), 0.5).tolist() == [0.5]


@needs_reference
def test_peers_agree_on_truncated_token_weights() -> None:
    batch = inputs(FILE, "batch")
    mask = matrix(batch["mask"]).bool()
    ours = truncated_weight(matrix(batch["old_log_probs"]), matrix(batch["rollout_log_probs"]), mask, 2.0)
    same(ours[mask], matrix(case(FILE, "trl_token_truncate_None_2.0")["ratio"])[mask].tolist())
    areal = case(FILE, "areal_token_clamp_ratio_mean_None_2.0")["weights"]  # in float32
    same(ours[mask], matrix(areal)[mask].tolist(), rtol=1e-5, atol=1e-6)
    for title in ("slime_mis_token_truncate", "slime_tis_0_2"):  # without padding
        slime = case(FILE, title)["weights"]
        lengths = [len(row) for row in slime]
        kept = flat([row[:length] for row, length in zip(batch["mask"], lengths, strict=True)]).bool()
        rows = flat([row[:length] for row, length in zip(ours.tolist(), lengths, strict=True)])
        same(rows[kept], flat(slime)[kept].tolist(), rtol=1e-6, atol=1e-7)


@needs_reference
def test_peers_agree_on_the_weighted_loss_and_its_gradient() -> None:
    """Decoupled PPO: the ratio is to the proximal policy, the weight corrects to the behaviour and lies outside the
    clip, the divisor is the whole mask."""
    batch = inputs(FILE, "batch")
    mask = matrix(batch["mask"]).bool()
    proximal, new = matrix(batch["old_log_probs"]), matrix(batch["log_probs"]).requires_grad_()
    weight = truncated_weight(proximal, matrix(batch["rollout_log_probs"]), mask, 2.0)
    token = ppo_clip(new, proximal, matrix(batch["advantages"]), mask, clip_low=0.2, clip_high=0.28).loss
    loss = (token * weight).sum() / mask.sum()
    loss.backward()
    assert new.grad is not None
    for title in ("verl_loss_token_tis2", "openrlhf_tis_0.0_2.0"):
        same(loss.detach(), case(FILE, title)["loss"])
        same(new.grad, case(FILE, title)["grad_log_probs"])
    same(loss.detach(), case(FILE, "trl_token_truncate_None_2.0")["loss_bnpo"])
    areal = case(FILE, "areal_token_clamp_ratio_mean_None_2.0")
    same(loss.detach(), areal["decoupled_loss"], rtol=1e-5, atol=1e-6)


@needs_reference
def test_a_lower_bound_as_in_slime_and_trl_is_not_ours() -> None:
    """They may also raise small weights to 0.5; we only truncate from above, as TIS does."""
    batch = inputs(FILE, "batch")
    mask = matrix(batch["mask"]).bool()
    ours = truncated_weight(matrix(batch["old_log_probs"]), matrix(batch["rollout_log_probs"]), mask, 2.0)
    raised = matrix(case(FILE, "trl_token_truncate_0.5_2.0")["ratio"])
    assert float(ours[mask].min()) < 0.5
    same(ours.clamp(min=0.5)[mask], raised[mask].tolist())


@needs_reference
def test_without_a_weight_it_is_plain_ppo_against_the_proximal_policy_in_areal() -> None:
    """Ours without a cap is not that: the ratio is then to the behaviour itself (design, section 8)."""
    batch = inputs(FILE, "batch")
    mask = matrix(batch["mask"]).bool()
    new, advantage = matrix(batch["log_probs"]), matrix(batch["advantages"])

    def mean(old: Tensor) -> Tensor:
        return ppo_clip(new, old, advantage, mask, clip_low=0.2, clip_high=0.28).loss.sum() / mask.sum()

    areal = case(FILE, "areal_no_rejection")["loss"]
    same(mean(matrix(batch["old_log_probs"])), areal)
    assert float(mean(matrix(batch["rollout_log_probs"]))) != pytest.approx(areal, rel=0.01)
