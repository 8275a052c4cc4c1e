"""Measures against the gap between sampler and trainer, against seven peers.

Peers leave a masked token in the denominator of the loss; ours does not count it (design, invariant of masked tokens),
so sums agree and means differ by the share of what is kept.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from vectors import Parity, matrix, needs_reference, same

from learner.importance import MismatchSpec, mismatch_weights, off_policy_mask
from learner.losses.ppo_clip import ppo_clip

parity = Parity(
    "07_is_correction",
    elsewhere={  # test_importance.py
        "verl_loss_token_tis2",
        "slime_tis_0_2",
        "slime_tis_0.5_2",
        "slime_mis_token_truncate",
        "openrlhf_tis_0.0_2.0",
        "trl_token_truncate_None_2.0",
        "trl_token_truncate_0.5_2.0",
        "areal_token_clamp_ratio_mean_None_2.0",
        "areal_no_rejection",
    },
)

FLOAT32 = {"rtol": 1e-5, "atol": 1e-6}
LENGTHS = [7, 5, 3, 6]
OWNERS = torch.arange(4).repeat_interleave(7)


def batch(key: str) -> Tensor:
    return matrix(parity.inputs("batch")[key]).reshape(-1)


def mask() -> Tensor:
    return batch("mask").bool()


def measured(*specs: MismatchSpec) -> tuple[Tensor, Tensor]:
    return mismatch_weights(batch("old_log_probs"), batch("rollout_log_probs"), mask(), OWNERS, list(specs))


def padded(table: list[list[float]]) -> Tensor:
    """Rows of a peer, ragged, of one entry or whole, as [28]."""
    rows = [row * 7 if len(row) == 1 else row + [0.0] * (7 - len(row)) for row in table]
    return matrix(rows).reshape(-1)


def weighed_loss(weight: Tensor, kept: Tensor) -> Tensor:
    """Divided by all of the mask, as peers do."""
    clip = ppo_clip(batch("log_probs"), batch("old_log_probs"), batch("advantages"), mask(),
                    clip_low=0.2, clip_high=0.28)  # fmt: skip
    return (clip.loss * weight * kept).sum() / mask().sum()


ICEPOP = MismatchSpec(kind="mask", low=0.5, high=2.0)


@parity(
    "verl_token_0.5_2.0", "openrlhf_icepop_0.5_2.0", "trl_token_mask_0.5_2.0", "areal_token_mask_ratio_mean_0.5_2.0"
)
def test_icepop(title: str) -> None:
    theirs = parity.case(title)
    weight, kept = measured(ICEPOP)
    table = theirs.get("weights") or theirs.get("ratio")
    if table:
        same((weight * kept)[mask()], padded(table)[mask()].tolist(), **FLOAT32)
    if "loss_mask" in theirs:
        assert kept.tolist() == padded(theirs["loss_mask"]).bool().tolist()
    for key in ("loss", "loss_bnpo", "decoupled_loss"):
        if key in theirs:
            same(weighed_loss(weight, kept), theirs[key], **FLOAT32)


@parity("trl_token_mask_None_2.0", "areal_token_mask_ratio_mean_None_2.0")
def test_a_mask_without_a_lower_bound(title: str) -> None:
    """Ours takes 1 / high where none is given, as slime does; these two take 0."""
    theirs = parity.case(title)
    weight, kept = measured(MismatchSpec(kind="mask", low=0.0, high=2.0))
    same((weight * kept)[mask()], padded(theirs.get("weights") or theirs["ratio"])[mask()].tolist(), **FLOAT32)
    same(weighed_loss(weight, kept), theirs.get("decoupled_loss") or theirs["loss_bnpo"], **FLOAT32)
    assert MismatchSpec(kind="mask", high=2.0).lowest == 0.5


@parity("verl_sequence_2.0", "slime_mis_sequence_truncate", "trl_sequence_mask_None_2.0")
def test_a_sequences_ratio_is_the_product_of_its_tokens(title: str) -> None:
    theirs = parity.case(title)
    if title.startswith("trl"):
        spec = MismatchSpec(kind="mask", level="sequence", low=0.0, high=2.0)
    else:
        spec = MismatchSpec(kind="truncate", level="sequence", high=2.0)
    weight, kept = measured(spec)
    assert torch.equal(kept, mask())
    same(weight[kept], padded(theirs.get("weights") or theirs["ratio"])[kept].tolist())
    if "loss_bnpo" in theirs:
        same(weighed_loss(weight, kept), theirs["loss_bnpo"])


@parity("verl_token_2.0_batchnorm", "verl_sequence_2.0_batchnorm", "slime_mis_sequence_truncate_batchnorm")
def test_weights_over_their_batchs_mean_are_not_ours(title: str) -> None:
    """Such a weight depends on who else is in the batch, so that splitting it would change the gradient."""
    level = "token" if "token" in title else "sequence"
    weight, kept = measured(MismatchSpec(kind="truncate", level=level, high=2.0))  # type: ignore[arg-type]
    theirs = padded(parity.case(title)["weights"])
    means = [weight[mask() & (row == OWNERS)].mean() for row in range(4)]
    mean = weight[mask()].mean() if level == "token" else torch.stack(means).mean()
    same((weight / mean)[kept], theirs[kept].tolist(), rtol=1e-6)
    assert float(mean) < 0.97


@parity("slime_mis_geometric_truncate", "areal_sequence_clamp_ratio_mean_None_1.1")
def test_areals_sequence_is_our_geometric_level(title: str) -> None:
    theirs = parity.case(title)
    weight, kept = measured(MismatchSpec(kind="truncate", level="geometric", high=1.1))
    same(weight[kept], padded(theirs["weights"])[kept].tolist(), **FLOAT32)
    if "decoupled_loss" in theirs:
        same(weighed_loss(weight, kept), theirs["decoupled_loss"], **FLOAT32)


@parity("slime_mis_geometric_mask_0.9_1.3")
def test_geometric_masks(title: str) -> None:
    theirs = parity.case(title)
    weight, kept = measured(MismatchSpec(kind="mask", level="geometric", low=0.9, high=1.3))
    assert kept.tolist() == (padded(theirs["modified_masks"]).bool() & mask()).tolist()
    same(weight[kept], padded(theirs["weights"])[kept].tolist())
    # Where masked, theirs keeps the raw weight; ours says 1, and nothing reads it.
    assert (weight[~kept] == 1).all()


@parity("areal_sequence_mask_ratio_sum_0.5_2.0")
def test_areal_masks_by_the_product_and_weighs_by_the_geometric_mean(title: str) -> None:
    """Ours does both by one level; with two measures it is the same."""
    theirs = parity.case(title)
    by_product = MismatchSpec(kind="reject", level="sequence", low=0.5, high=2.0)
    weight, kept = measured(by_product, MismatchSpec(kind="truncate", level="geometric", high=2.0))
    assert kept.tolist() == padded(theirs["loss_mask"]).bool().tolist()
    same((weight * kept)[mask()], padded(theirs["weights"])[mask()].tolist(), **FLOAT32)
    same(weighed_loss(weight, kept), theirs["decoupled_loss"], **FLOAT32)


@parity("openrlhf_seq-mask-tis_0.9_1.3")
def test_openrlhf_filters_sequences_and_leaves_token_weights_unbounded(title: str) -> None:
    """Ours with a cap that binds nowhere is that; with the cap of 2 it would not be."""
    theirs = parity.case(title)
    sequences = MismatchSpec(kind="reject", level="geometric", low=0.9, high=1.3)
    unbounded = weighed_loss(*measured(sequences, MismatchSpec(kind="truncate", high=1e6)))
    same(unbounded, theirs["loss"])
    capped = weighed_loss(*measured(sequences, MismatchSpec(kind="truncate", high=2.0)))
    assert abs(float(capped) - theirs["loss"]) > 0.001


@parity("slime_mis_token_truncate_rs_geometric_0.9_1.3", "slime_mis_token_truncate_rs_veto")
def test_truncation_and_rejection_together(title: str) -> None:
    theirs = parity.case(title)
    if title.endswith("veto"):
        sequences = [MismatchSpec(kind="reject", level="sequence", low=0.001, high=1000.0),
                     MismatchSpec(kind="veto", low=0.5)]  # fmt: skip
    else:
        sequences = [MismatchSpec(kind="reject", level="geometric", low=0.9, high=1.3)]
    weight, kept = measured(MismatchSpec(kind="truncate", high=2.0), *sequences)
    assert kept.tolist() == (padded(theirs["modified_masks"]).bool() & mask()).tolist()
    same(weight[kept], padded(theirs["weights"])[kept].tolist(), rtol=1e-6)


@parity("verl_rs_token_k1_0.5_2.0", "verl_rs_token_k1_0.9_2.0", "verl_rs_seq_mean_k1_0.5_2.0")
def test_k1_bounds_trainer_over_sampler_where_verl_bounds_the_reciprocal(title: str) -> None:
    """slime, TRL and AReaL bound it as ours does; with reciprocal bounds there is no difference."""
    theirs = padded(parity.case(title)["mask"]).bool()
    level = "geometric" if "mean" in title else "token"
    low = 0.9 if "0.9" in title else 0.5

    def kept(low: float, high: float) -> Tensor:
        spec = MismatchSpec(kind="reject", level=level, low=low, high=high, estimator="k1")  # type: ignore[arg-type]
        weight, within = measured(spec)
        assert (weight == 1).all()
        return within

    assert torch.equal(kept(1 / 2.0, 1 / low), theirs)
    assert torch.equal(kept(low, 2.0), theirs) == (low == 0.5)


@parity("verl_rs_token_k2_0.1", "verl_rs_token_k3_0.1", "verl_rs_seq_mean_k3_0.1")
def test_rejection_by_the_kl_from_sampler_to_trainer(title: str) -> None:
    level = "geometric" if "mean" in title else "token"
    estimator = "k2" if "k2" in title else "k3"
    _, kept = measured(MismatchSpec(kind="reject", level=level, high=0.1, estimator=estimator))  # type: ignore[arg-type]
    assert torch.equal(kept, padded(parity.case(title)["mask"]).bool())


@parity("verl_rs_seq_sum_k1,seq_mean_k3_0.3_3.0,0.1")
def test_two_rejections(title: str) -> None:
    product = MismatchSpec(kind="reject", level="sequence", low=1 / 3.0, high=1 / 0.3)
    _, kept = measured(product, MismatchSpec(kind="reject", level="geometric", high=0.1, estimator="k3"))
    assert torch.equal(kept, padded(parity.case(title)["mask"]).bool())


@parity("areal_token_mask_kl_k2_mean_None_0.1")
def test_areal_rejects_by_k2_and_weighs_what_is_left(title: str) -> None:
    theirs = parity.case(title)
    _, kept = measured(MismatchSpec(kind="reject", high=0.1, estimator="k2"))
    assert kept.tolist() == padded(theirs["loss_mask"]).bool().tolist()
    weight, both = measured(
        MismatchSpec(kind="reject", high=0.1, estimator="k2"), MismatchSpec(kind="truncate", high=2.0)
    )
    assert torch.equal(both, kept)
    same((weight * kept)[mask()], padded(theirs["weights"])[mask()].tolist(), **FLOAT32)
    same(weighed_loss(weight, kept), theirs["decoupled_loss"], **FLOAT32)


@needs_reference
def test_areals_k3_runs_the_other_way_than_ours_and_verls() -> None:
    """The tokens are the sampler's, so KL(sampler || trainer) is what they can estimate."""
    gap = math.log(3.0)
    one = torch.zeros(1), torch.tensor([-gap]), torch.ones(1).bool(), torch.zeros(1).long()
    ours = math.expm1(gap) - gap  # 0.90; theirs would be expm1(-gap) + gap, 0.43
    for high, stays in ((ours * 1.01, True), (ours * 0.99, False)):
        assert bool(mismatch_weights(*one, MismatchSpec(kind="reject", high=high, estimator="k3"))[1]) == stays


@parity(
    "trl_opsm_seqadv_-0.3", "slime_opsm_seqadv_0.1", "trl_opsm_seqadv_0.1", "trl_opsm_negated_-0.3",
    "trl_opsm_negated_0.1", "trl_opsm_all_negative_-0.3", "slime_opsm_all_negative_0.1", "trl_opsm_all_negative_0.1",
)  # fmt: skip
def test_bad_sequences_that_are_far_off_policy_are_dropped(title: str) -> None:
    theirs = parity.case(title)
    limit = theirs["inputs"].get("delta", theirs["inputs"].get("threshold"))
    advantages = torch.tensor(theirs["inputs"]["seq_advantages"], dtype=torch.float64).repeat_interleave(7)
    ours = off_policy_mask(batch("log_probs"), batch("old_log_probs"), advantages, mask(), OWNERS, limit=limit)
    assert torch.equal(ours, padded(theirs["mask"]).bool() & mask())


@needs_reference
def test_every_case_has_a_test() -> None:
    parity.check_complete()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "truncate"}, "positive high"),
        ({"kind": "truncate", "low": 0.5, "high": 2.0}, "low must be None"),
        ({"kind": "mask", "low": 3.0, "high": 2.0}, "within"),
        ({"kind": "mask", "low": -1.0, "high": 2.0}, "within"),
        ({"kind": "mask", "high": 0.5}, "within"),
        ({"kind": "reject", "high": 0.0, "estimator": "k3"}, "positive high"),
        ({"kind": "veto"}, "positive low"),
        ({"kind": "clip", "high": 2.0}, "there are truncate"),
        ({"kind": "mask", "high": 2.0, "level": "batch"}, "there are token"),
        ({"kind": "reject", "high": 2.0, "estimator": "k4"}, "there are k1"),
    ],
)
def test_bounds_that_cannot_hold_are_refused(spec: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MismatchSpec(**spec)  # type: ignore[arg-type]
