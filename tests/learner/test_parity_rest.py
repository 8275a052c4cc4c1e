"""The cases of clipped losses, KL estimators and aggregation that the tests of those do not name."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from vectors import Parity, matrix, needs_reference, same

from learner.aggregation import Aggregation, token_weights
from learner.losses.kl import kl_estimate

clip = Parity(
    "01_ppo_clip",
    elsewhere={  # test_ppo_clip.py, all of them
        "openrlhf_eps0.2_0.2", "trl_eps0.2_0.2", "verl_eps0.2_0.2", "slime_eps0.2_0.28", "openrlhf_eps0.2_0.28",
        "trl_eps0.2_0.28", "areal_eps0.2_0.28", "slime_eps0.2_0.28_dual3", "openrlhf_eps0.2_0.28_dual3",
        "trl_eps0.2_0.28_dual3", "areal_eps0.2_0.28_dual3", "slime_border_neg", "areal_extreme", "verl_extreme",
        "slime_eps0.2_0.28_dual3_float32",
    },
)  # fmt: skip
kl = Parity(
    "02_kl_estimators",
    elsewhere={  # test_kl.py
        "slime_k1", "verl_k1", "slime_k2", "verl_k2", "slime_k3", "verl_k3", "openrlhf_k3", "trl_k3",
        "prime_mismatch_kl",
    },
)  # fmt: skip
aggregation = Parity(
    "06_aggregation",
    elsewhere={  # test_aggregation.py
        "verl_token-mean_holes", "trl_bnpo_holes", "areal_holes", "verl_seq-mean-token-sum_holes",
        "verl_norm_const1024_holes", "verl_seq-mean-token-mean_holes", "verl_token-mean_one_row_empty",
        "trl_bnpo_one_row_empty", "areal_one_row_empty", "verl_seq-mean-token-sum_one_row_empty",
        "verl_norm_const1024_one_row_empty", "openrlhf_one_row_empty", "trl_grpo_one_row_empty", "slime_one_row_empty",
        "trl_dr_grpo_one_row_empty", "verl_seq-mean-token-sum-norm_holes", "verl_jan26_seq-mean-token-sum-norm_holes",
    },
)  # fmt: skip

CLOSE = {"rtol": 1e-6, "atol": 1e-7}  # token weights are float32


def estimate(estimator: str) -> Tensor:
    pair = kl.inputs("pair")
    policy, reference = matrix(pair["log_probs"]), matrix(pair["ref_log_probs"])
    return kl_estimate(policy, reference, torch.ones_like(policy).bool(), estimator)  # type: ignore[arg-type]


@kl("areal_k2", "areal_k3", "slime_low_var_kl")
def test_a_clamp_of_the_estimate_at_10_is_not_ours(title: str) -> None:
    """Beyond it the gradient would be gone where it is needed most; ours holds only the exponent, at 20."""
    theirs = kl.case(title)
    ours = estimate("k2" if title.endswith("k2") else "k3")
    clamped = ours.clamp(-10, 10)
    same(clamped, theirs["kl"], rtol=1e-5, atol=1e-6)
    if "kl_no_clamp" in theirs:
        calm = slice(0, 8)  # then come gaps of 28 and 27 nats
        same(ours[calm], theirs["kl_no_clamp"][calm], rtol=1e-5, atol=1e-6)
    assert float(ours.max()) > 10


@kl("slime_k3_unbiased")
def test_a_k3_weighed_by_the_importance_ratio_is_a_product(title: str) -> None:
    """DeepSeek-V3.2's form, for tokens of an older policy: the ratio is the caller's to multiply on."""
    theirs = kl.case(title)
    ratio = torch.tensor(theirs["inputs"]["importance_ratio"], dtype=torch.float64)
    calm = [0, 1, 2, 3, 4, 5, 6]  # then come gaps of 11, 28 and 27 nats
    same((estimate("k3") * ratio)[calm], matrix(theirs["kl"])[calm].tolist(), rtol=1e-5, atol=1e-6)


@needs_reference
def test_a_k2_gradient_under_a_k3_value_is_k2_itself() -> None:
    """verl's straight-through form keeps k3's value and takes k2's gradient: choose k2 and log k3."""
    pair = kl.inputs("pair")
    policy, reference = matrix(pair["log_probs"]).requires_grad_(), matrix(pair["ref_log_probs"])
    kl_estimate(policy, reference, torch.ones(10).bool(), "k2").sum().backward()
    assert policy.grad is not None
    same(policy.grad, kl.case("verl_k3")["grad_of_sum_straight_through_plus"])


def aggregate(how: Aggregation, title: str, constant: float | None = None) -> float:
    given = aggregation.inputs("loss")
    loss = matrix(given["loss_mat"])
    mask = matrix(given["mask_one_row_empty" if title.endswith("one_row_empty") else "mask"]).bool()
    owners = torch.arange(4).repeat_interleave(7)
    return float((token_weights(mask.reshape(-1), owners, how, constant=constant).double() * loss.reshape(-1)).sum())


def tokens(title: str) -> int:
    return 15 if title.endswith("one_row_empty") else 18


@aggregation("gopd_token-mean_holes", "gopd_seq-mean-token-sum_holes", "gopd_seq-mean-token-mean_holes",
             "gopd_seq-mean-token-sum_one_row_empty", "gopd_seq-mean-token-mean_one_row_empty",
             "trl_grpo_holes", "trl_dr_grpo_holes")  # fmt: skip
def test_more_that_agree(title: str) -> None:
    how: Aggregation = "token_mean"
    for name, ours in (("token-sum", "sequence_sum"), ("token-mean_", "sequence_mean"), ("trl_grpo", "sequence_mean"),
                       ("dr_grpo", "constant")):  # fmt: skip
        if name in title and "gopd_token" not in title:
            how = ours  # type: ignore[assignment]
    constant = 1024 if how == "constant" else None
    same(aggregate(how, title, constant), aggregation.case(title)["loss"], **CLOSE)


@aggregation("verl_token-sum_holes", "verl_token-sum_one_row_empty", "slime_holes")
def test_a_plain_sum_of_tokens_is_a_token_mean_times_their_number(title: str) -> None:
    """It is no option: its size depends on the batch, and with it the learning rate."""
    theirs = aggregation.case(title)
    summed = aggregate("token_mean", title) * tokens(title)
    same(summed, theirs.get("loss") or theirs["sum_of_token"], **CLOSE)
    if title == "slime_holes":
        same(aggregate("sequence_mean", title) * 4, theirs["sum_of_sample_mean"], **CLOSE)


@aggregation("gopd_seq-mean-token-sum-norm_one_row_empty", "sdpo_seq-mean-token-sum-norm_one_row_empty",
             "verl_jan26_seq-mean-token-sum-norm_one_row_empty")  # fmt: skip
def test_a_constant_alone_lets_the_loss_grow_with_the_rows(title: str) -> None:
    """Ours, as verl's newest, also divides by the rows that count: three here."""
    same(aggregate("constant", title, constant=7) * 3, aggregation.case(title)["loss"], **CLOSE)


@aggregation("verl_global_holes", "verl_global_one_row_empty", "trl_dapo_one_row_empty")
def test_divisors_of_the_whole_batch(title: str) -> None:
    """These are one rank's share: its sum over the counts of all ranks (50 tokens, 10 rows), times the ranks where the
    gradient is averaged over them later. Ours weighs tokens by the whole micro-batch before it is split at all."""
    theirs = aggregation.case(title)
    if title.startswith("trl"):
        share = aggregate("token_mean", title) * tokens(title) / theirs["inputs"]["num_items_in_batch"]
        same(share, theirs["loss"], **CLOSE)
        return
    rows = 3 if title.endswith("one_row_empty") else 4
    same(aggregate("token_mean", title) * tokens(title) / 50 * 2, theirs["token-mean"], **CLOSE)
    same(aggregate("sequence_sum", title) * rows / 10 * 2, theirs["seq-mean-token-sum"], **CLOSE)
    same(aggregate("sequence_mean", title) * rows / 10 * 2, theirs["seq-mean-token-mean"], **CLOSE)
    same(aggregate("constant", title, constant=7) * rows / 10 * 2, theirs["seq-mean-token-sum-norm"], **CLOSE)


@needs_reference
@pytest.mark.parametrize("file", [clip, kl, aggregation], ids=lambda file: file.name)
def test_every_case_has_a_test(file: Parity) -> None:
    file.check_complete()


def test_the_bound_of_the_exponent_is_what_it_says() -> None:
    ours = kl_estimate(torch.tensor([-30.0]), torch.tensor([-1.0]), torch.ones(1).bool(), "k3")
    assert float(ours) == pytest.approx(math.exp(20) - 21)
