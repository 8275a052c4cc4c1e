"""Weights and masks for a sampler that is not the policy in training, by hand and in every degenerate case."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from learner.importance import (
    LEAST_LOG_PROB,
    MismatchSpec,
    mismatch_weights,
    off_policy_mask,
    sequence_mean,
    sequence_sum,
)

OWNERS = torch.tensor([0, 0, 1, 1])
WHOLE = torch.ones(4).bool()
RATIOS = [4.0, 1.0, 0.25, 2.0]

SPECS = [
    MismatchSpec(kind="truncate", high=2.0),
    MismatchSpec(kind="truncate", high=2.0, level="sequence"),
    MismatchSpec(kind="truncate", high=2.0, level="geometric"),
    MismatchSpec(kind="mask", low=0.5, high=2.0),
    MismatchSpec(kind="mask", low=0.6, high=3.0, level="sequence"),
    MismatchSpec(kind="mask", low=0.6, high=1.8, level="geometric"),
    MismatchSpec(kind="reject", low=0.5, high=2.0),
    MismatchSpec(kind="reject", high=0.5, estimator="k2"),
    MismatchSpec(kind="reject", high=0.5, estimator="k3", level="sequence"),
    MismatchSpec(kind="reject", high=0.5, estimator="k3", level="geometric"),
    MismatchSpec(kind="veto", low=0.3),
]
each_spec = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.kind}-{spec.level}-{spec.estimator}")


def log_probs(ratios: list[float] | None = None, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    behaviour = torch.full((4,), -3.0, dtype=dtype)
    return behaviour + torch.tensor(ratios or RATIOS, dtype=dtype).log(), behaviour


def test_by_hand() -> None:
    """Products 4 and 1/2, geometric means 2 and 0.707."""
    mean = math.sqrt(0.5)
    expected: list[tuple[list[float], list[bool]]] = [
        ([2.0, 1.0, 0.25, 2.0], [True] * 4),
        ([2.0, 2.0, 0.5, 0.5], [True] * 4),
        ([2.0, 2.0, mean, mean], [True] * 4),
        ([1.0, 1.0, 1.0, 2.0], [False, True, False, True]),
        ([1.0] * 4, [False] * 4),
        ([1.0, 1.0, mean, mean], [False, False, True, True]),
        ([1.0] * 4, [False, True, False, True]),
        ([1.0] * 4, [False, True, False, True]),
        ([1.0] * 4, [False, False, False, False]),
        ([1.0] * 4, [False, False, True, True]),
        ([1.0] * 4, [True, True, False, False]),
    ]
    for spec, (weights, kept) in zip(SPECS, expected, strict=True):
        weight, mask = mismatch_weights(*log_probs(), WHOLE, OWNERS, spec)
        assert weight.tolist() == pytest.approx(weights), spec
        assert mask.tolist() == kept, spec


def test_several_measures_each_look_at_the_whole_mask() -> None:
    """Were the token mask applied first, the first sequence's geometric mean would be 1 and stay."""
    specs = [
        MismatchSpec(kind="mask", low=0.5, high=2.0),
        MismatchSpec(kind="reject", level="geometric", low=0.5, high=1.9),
    ]
    weight, mask = mismatch_weights(*log_probs(), WHOLE, OWNERS, specs)
    assert mask.tolist() == [False, False, False, True]
    assert weight.tolist() == pytest.approx([1.0, 1.0, 1.0, 2.0])
    assert mismatch_weights(*log_probs(), WHOLE, OWNERS, [])[0].tolist() == [1.0] * 4


@each_spec
def test_on_policy_nothing_is_weighed_or_masked(spec: MismatchSpec) -> None:
    weight, mask = mismatch_weights(*log_probs([1.0] * 4), WHOLE, OWNERS, spec)
    assert weight.tolist() == [1.0] * 4
    assert mask.all()


@each_spec
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1.0])
def test_a_masked_token_is_no_part_of_its_sequence(spec: MismatchSpec, junk: float) -> None:
    """As though it were not there."""
    proximal, behaviour = log_probs()
    mask = torch.tensor([True, False, True, True])
    dirty = [torch.where(mask, each, junk) for each in (proximal, behaviour)]
    weight, kept = mismatch_weights(dirty[0], dirty[1], mask, OWNERS, spec)
    without = mismatch_weights(proximal[mask], behaviour[mask], mask[mask], OWNERS[mask], spec)
    assert weight[mask].tolist() == without[0].tolist()
    assert kept[mask].tolist() == without[1].tolist()
    assert (weight[1], bool(kept[1])) == (1, False)


@each_spec
def test_nothing_kept_and_no_tokens(spec: MismatchSpec) -> None:
    nothing = torch.full((4,), math.nan)
    weight, mask = mismatch_weights(nothing, nothing, ~WHOLE, OWNERS, spec)
    assert weight.tolist() == [1.0] * 4
    assert not mask.any()
    none = torch.zeros(0)
    weight, mask = mismatch_weights(none, none, none.bool(), none.long(), spec)
    assert (len(weight), len(mask)) == (0, 0)


@each_spec
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_impossible_tokens_and_huge_gaps_leave_weights_finite(spec: MismatchSpec, dtype: torch.dtype) -> None:
    impossible = torch.tensor([-math.inf, -1.0, LEAST_LOG_PROB, -200.0], dtype=dtype)
    possible = torch.full((4,), -1.0, dtype=dtype)
    for pair in ((impossible, possible), (possible, impossible), (impossible, impossible)):
        weight, _ = mismatch_weights(*pair, WHOLE, OWNERS, spec)
        assert weight.dtype == dtype
        assert weight.isfinite().all()
        assert (weight >= 0).all()
        assert weight.max() <= (spec.high or 1.0) if spec.kind != "reject" else weight.max() == 1


@each_spec
def test_a_weight_is_no_function_of_the_policys_gradient(spec: MismatchSpec) -> None:
    proximal, behaviour = log_probs()
    weight, _ = mismatch_weights(proximal.requires_grad_(), behaviour, WHOLE, OWNERS, spec)
    assert not weight.requires_grad


@each_spec
def test_sequences_may_be_split_into_any_batches(spec: MismatchSpec) -> None:
    whole = mismatch_weights(*log_probs(), WHOLE, OWNERS, spec)
    for part in (slice(0, 2), slice(2, 4)):
        proximal, behaviour = log_probs()
        one = mismatch_weights(proximal[part], behaviour[part], WHOLE[part], torch.zeros(2).long(), spec)
        assert one[0].tolist() == whole[0][part].tolist()
        assert one[1].tolist() == whole[1][part].tolist()


def test_a_bad_sequence_that_is_far_off_is_dropped_and_a_good_one_is_not() -> None:
    newer, older = torch.tensor([-2.0, -2.0, -2.0, -2.0]), torch.tensor([-1.0, -1.5, -1.0, -1.5])
    advantage = torch.tensor([-1.0, 0.5, 1.0, -0.5])
    assert off_policy_mask(newer, older, advantage, WHOLE, OWNERS, limit=0.7).tolist() == [False, False, True, True]
    assert off_policy_mask(newer, older, advantage, WHOLE, OWNERS, limit=0.8).all()  # it drifted by 0.75
    assert off_policy_mask(newer, older, advantage, WHOLE, OWNERS, limit=0.75).all()  # not beyond
    assert off_policy_mask(newer, older, torch.zeros(4), WHOLE, OWNERS, limit=0.7).all()  # neither good nor bad
    mask = torch.tensor([True, False, True, True])  # a masked token counts in neither mean
    assert off_policy_mask(newer, older, advantage, mask, OWNERS, limit=0.8).tolist() == [False, False, True, True]


def test_a_ratio_on_a_bound_is_within_it() -> None:
    for kind in ("mask", "reject"):
        exact = MismatchSpec(kind=kind, low=1.0, high=1.0)  # type: ignore[arg-type]
        assert mismatch_weights(*log_probs([1.0] * 4), WHOLE, OWNERS, exact)[1].all()
    assert mismatch_weights(*log_probs([1.0] * 4), WHOLE, OWNERS, MismatchSpec(kind="veto", low=1.0))[1].all()


def test_sums_by_hand() -> None:
    values, owners = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2, 0, 2])
    assert sequence_sum(values, owners).tolist() == [2.0, 0.0, 5.0]
    assert sequence_mean(values, torch.tensor([True, False, True]), owners).tolist() == [0.0, 0.0, 2.5]
    assert len(sequence_sum(values[:0], owners[:0])) == 0


def test_means_of_long_sequences_do_not_drift_in_float32() -> None:
    count = 200_000
    mean = sequence_mean(torch.full((count,), 0.1), torch.ones(count).bool(), torch.zeros(count).long())
    assert float(mean) == pytest.approx(0.1, rel=1e-7)
