"""GSPO, CISPO, the overlong penalty and the critic's loss against their peers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from vectors import Parity, matrix, needs_reference, same

from learner.advantages.overlong import overlong_penalty, shaped_reward
from learner.aggregation import Aggregation, token_weights
from learner.losses.cispo import cispo
from learner.losses.gspo import gspo
from learner.losses.value import value_loss

parity = Parity("08_gspo_cispo_overlong")
values = Parity("11_value_loss")

CLOSE = {"rtol": 1e-6, "atol": 1e-7}  # token weights are float32, and some peers add 1e-8 to a denominator
OWNERS = torch.arange(4).repeat_interleave(7)


def batch(key: str, file: Parity = parity, name: str = "batch") -> Tensor:
    return matrix(file.inputs(name)[key]).reshape(-1)


def weighed(loss: Tensor, mask: Tensor, aggregation: Aggregation) -> Tensor:
    return (loss * token_weights(mask, OWNERS, aggregation)).sum()


def gspo_of(title: str, advantages: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Token losses, log-probs that will hold a gradient, and the mask."""
    low, high = (float(part) for part in title.split("_")[-2:])
    mask, new = batch("mask").bool(), batch("log_probs").requires_grad_()
    if advantages is None:
        advantages = batch("advantages")
        if "seqadv" in title:
            advantages = torch.tensor(parity.inputs("batch")["seq_advantages"]).double().repeat_interleave(7)
    result = gspo(new, batch("old_log_probs"), advantages, mask, OWNERS, clip_low=low, clip_high=high)
    return result.loss, new, mask


def gradient(loss: Tensor, new: Tensor) -> Tensor:
    return torch.autograd.grad(loss, new)[0]


@parity(
    "verl_gspo_seqadv_0.0003_0.0004", "slime_gspo_seqadv_0.0003_0.0004", "slime_gspo_seqadv_0.2_0.28",
    "openrlhf_gspo_seqadv_0.2_0.28", "trl_gspo_seqadv_0.2_0.28", "verl_gspo_tokadv_0.0003_0.0004",
    "verl_gspo_tokadv_0.2_0.28",
)  # fmt: skip
def test_gspo_agrees_in_value_and_gradient(title: str) -> None:
    theirs = parity.case(title)
    token, new, mask = gspo_of(title)
    loss = weighed(token, mask, "sequence_mean")
    same(loss.detach(), theirs.get("loss") or theirs["loss_sum_of_sample_mean_over_B"], **CLOSE)
    same(gradient(loss, new), matrix(theirs["grad_log_probs"]).reshape(-1).tolist(), **CLOSE)


@parity("openrlhf_gspo_tokadv_0.0003_0.0004", "trl_gspo_tokadv_0.0003_0.0004",
        "slime_gspo_tokadv_0.2_0.28", "trl_gspo_tokadv_0.2_0.28")  # fmt: skip
def test_gspo_with_token_advantages_keeps_each_tokens_own_where_three_peers_spread_the_mean(title: str) -> None:
    """Values agree. As the paper's GSPO-token and verl, ours credits the token; theirs its whole sequence alike."""
    theirs = parity.case(title)
    token, new, mask = gspo_of(title)
    loss = weighed(token, mask, "sequence_mean")
    same(loss.detach(), theirs.get("loss") or theirs["loss_sum_of_sample_mean_over_B"], **CLOSE)
    ours, others = gradient(loss, new), matrix(theirs["grad_log_probs"]).reshape(-1)
    assert float((ours - others).abs().max()) > 0.01
    spread = torch.cat([torch.where(kept, row[kept].mean(), 0.0) for row, kept in zip(ours.split(7), mask.split(7),
                                                                                      strict=True)])  # fmt: skip
    same(spread, others.tolist(), **CLOSE)


@parity("areal_gspo_seqadv_0.0003_0.0004", "areal_gspo_seqadv_0.2_0.28", "areal_gspo_tokadv_0.0003_0.0004",
        "areal_gspo_tokadv_0.2_0.28")  # fmt: skip
def test_areals_gspo_is_ours_of_mean_advantages_under_a_token_mean(title: str) -> None:
    """The paper's mean is over sequences; with a token mean long answers weigh more."""
    theirs = parity.case(title)
    mask, advantages = batch("mask").bool(), None
    if "tokadv" in title:
        own = batch("advantages").split(7)
        means = [row[kept].mean() for row, kept in zip(own, mask.split(7), strict=True)]
        advantages = torch.stack(means).repeat_interleave(7)
    token, new, _ = gspo_of(title, advantages)
    loss = weighed(token, mask, "token_mean")
    same(loss.detach(), theirs["loss"], **CLOSE)
    same(gradient(loss, new), matrix(theirs["grad_log_probs"]).reshape(-1).tolist(), **CLOSE)


@parity("verl_cispo_0.2_0.28", "slime_cispo_0.2_0.28", "verl_cispo_1_4", "slime_cispo_1_4", "trl_cispo_eh5")
def test_cispo(title: str) -> None:
    """TRL's epsilon_high of 5 is the cap itself: our 1 + 4, and no lower bound."""
    theirs = parity.case(title)
    low, high = (0.2, 0.28) if title.endswith("0.28") else (1.0, 4.0)
    mask, new = batch("mask").bool(), batch("log_probs").requires_grad_()
    result = cispo(new, batch("old_log_probs"), batch("advantages"), mask, clip_low=low, clip_high=high)
    loss = result.loss.sum() / mask.sum()
    same(loss.detach(), theirs.get("loss") or theirs["token_mean_loss"])
    same(gradient(loss, new), matrix(theirs["grad_log_probs"]).reshape(-1).tolist())
    if "token_loss" in theirs:
        same(result.loss.detach(), matrix(theirs["token_loss"]).reshape(-1).tolist())
        flags = matrix(theirs["token_clipped"]).reshape(-1).bool()
        assert torch.equal(result.clipped_high | result.clipped_low, flags & mask)


@parity("trl_cispo_eh0.28")
def test_a_ppo_range_copied_into_trls_cispo_caps_every_ratio_at_it(title: str) -> None:
    """Ours adds it to 1. TRL's meaning would be our clip_high of 0.28 - 1 = -0.72."""
    theirs = parity.case(title)
    mask, new = batch("mask").bool(), batch("log_probs")
    meant = cispo(new, batch("old_log_probs"), batch("advantages"), mask, clip_low=1.0, clip_high=-0.72).loss
    same(meant.sum() / mask.sum(), theirs["loss"])
    ours = cispo(new, batch("old_log_probs"), batch("advantages"), mask, clip_low=1.0, clip_high=0.28).loss
    assert abs(float(ours.sum() / mask.sum()) / theirs["loss"]) > 1.5


@parity("openrlhf_overlong_f1", "areal_overlong_f1")
def test_the_overlong_penalty_ends_at_the_limit_as_in_dapo_and_openrlhf(title: str) -> None:
    """verl and AReaL go on below -factor beyond it; with a limit that the engine holds to, no answer gets there."""
    theirs = parity.case(title)
    given = theirs["inputs"]
    ours = [shaped_reward(given["base_reward"], length, limit=100, buffer=20) for length in given["lengths"]]
    part = slice(None) if title.startswith("openrlhf") else slice(0, 6)
    same(torch.tensor(ours, dtype=torch.float64)[part], theirs["rewards"][part], rtol=1e-5, atol=1e-6)
    if title.startswith("areal"):
        assert theirs["rewards"][6] < -0.4
        assert overlong_penalty(110, limit=100, buffer=20) == -1.0


@parity("openrlhf_stop_0.5", "openrlhf_stop_0", "openrlhf_stop_-0.5")
def test_a_truncated_answer_is_left_out_rather_than_given_a_scaled_reward(title: str) -> None:
    """OpenRLHF scales the reward of what was cut off, which halves a punishment too (-1 becomes -0.5), or replaces it.
    Ours trains it as it was scored, or (`train_truncated` false) not at all; the overlong penalty is a slope."""
    theirs = parity.case(title)["rewards"]
    given = parity.case(title)["inputs"]
    coefficient = given["coef"]
    expected = [
        (coefficient if coefficient < 0 else coefficient * reward) if cut else reward
        for reward, cut in zip(given["rewards"], given["truncated"], strict=True)
    ]
    same(torch.tensor(expected, dtype=torch.float64), theirs)
    # Ours never touches the reward of an answer that stayed well below the limit, cut off or not.
    assert [shaped_reward(reward, 10, limit=100, buffer=20) for reward in given["rewards"]] == given["rewards"]


def value_of(clip: float | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mask = batch("mask", values, "values").bool()
    value = batch("values", values, "values").requires_grad_()
    old, sums = batch("old_values", values, "values"), batch("returns", values, "values")
    result = value_loss(value, old, sums, mask, clip=clip)
    return result.loss, result.clipped, value, mask


@values("verl_clip0.2", "verl_clip0.5", "openrlhf_clip0.2", "openrlhf_clip0.5", "openrlhf_noclip", "areal_clip0.5")
def test_the_critics_loss(title: str) -> None:
    theirs = values.case(title)
    clip = None if title.endswith("noclip") else float(title[-3:])
    token, clipped, value, mask = value_of(clip)
    loss = token.sum() / mask.sum()
    same(loss.detach(), theirs.get("loss_token_mean") or theirs["loss"], **CLOSE)
    for key in ("loss_seq_mean", "loss_seq_mean_token_mean"):
        if key in theirs:
            same(weighed(token.detach(), mask, "sequence_mean"), theirs[key], **CLOSE)
    if "clipfrac" in theirs:
        same(clipped.sum() / mask.sum(), theirs["clipfrac"], **CLOSE)
    if "clip_mask" in theirs:
        assert torch.equal(clipped, matrix(theirs["clip_mask"]).reshape(-1).bool() & mask)
    if "grad_values" in theirs:
        same(gradient(loss, value), matrix(theirs["grad_values"]).reshape(-1).tolist(), **CLOSE)


@values("slime_clip0.2", "slime_clip0.5")
def test_slimes_critic_loss_is_twice_ours(title: str) -> None:
    """And its clip fraction counts every value that moved beyond the clip, ours those whose gradient it took."""
    theirs = values.case(title)
    token, clipped, _, mask = value_of(float(title[-3:]))
    same(weighed(token.detach(), mask, "sequence_mean") * 4 * 2, theirs["loss_sum_of_sample_mean"], **CLOSE)
    share = weighed(clipped.double(), mask, "sequence_mean") * 4
    assert float(share) < theirs["value_clipfrac"]


@needs_reference
@pytest.mark.parametrize("file", [parity, values], ids=lambda file: file.name)
def test_every_case_has_a_test(file: Parity) -> None:
    file.check_complete()
