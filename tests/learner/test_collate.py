"""Samples are refused with a reason, and packed into passes without loss."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import make_sample, mixed_samples

from learner.collate import plan_forwards
from learner.samples import InvalidSample, TrainingSample

GOOD = make_sample(0, prompt=2, response=3, teacher=True)
FLOATS = np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (replace(GOOD, prompt_ids=GOOD.prompt_ids[:0]), "no_tokens"),
        (replace(GOOD, response_ids=GOOD.response_ids[:0], response_logprobs=FLOATS[:0]), "no_tokens"),
        (replace(GOOD, response_logprobs=FLOATS[:2]), "logprob_length_mismatch"),
        (replace(GOOD, teacher_logprobs=FLOATS[:2]), "teacher_length_mismatch"),
        (replace(GOOD, response_logprobs=np.array([-1, math.nan, -1], np.float32)), "non_finite_logprob"),
        (replace(GOOD, response_logprobs=np.array([-1, -math.inf, -1], np.float32)), "non_finite_logprob"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_its_reason(sample: TrainingSample, reason: str) -> None:
    with pytest.raises(InvalidSample) as refused:
        sample.check()
    assert refused.value.reason == reason
    GOOD.check()


@pytest.mark.parametrize("budget", [1, 12, 25, 1000])
def test_every_response_token_is_in_one_pass(budget: int) -> None:
    samples = mixed_samples()
    forwards = plan_forwards(samples, budget)
    flat = torch.cat([forward.flat for forward in forwards])
    assert sorted(flat.tolist()) == list(range(sum(len(s.response_ids) for s in samples)))
    ids = torch.from_numpy(np.concatenate([s.response_ids for s in samples])).long()
    for forward in forwards:
        assert forward.targets.tolist() == ids[forward.flat].tolist()
        assert forward.input_ids[0, forward.positions + 1].tolist() == forward.targets.tolist()
        assert forward.position_ids[0].tolist() == [place for length in forward.lengths for place in range(length)]
        assert sum(forward.lengths) == forward.input_ids.numel()
        assert len(forward.lengths) == 1 or forward.input_ids.numel() <= budget


def test_samples_that_carry_nothing_are_in_no_pass() -> None:
    samples = mixed_samples()
    carried = [True, False, True, False, False]
    flat = torch.cat([forward.flat for forward in plan_forwards(samples, 25, carried)])
    assert sorted(flat.tolist()) == [*range(7), *range(9, 20)]


def test_the_plan_is_the_same_each_time_and_needs_a_budget() -> None:
    one, two = (plan_forwards(mixed_samples(), 25) for _ in range(2))
    assert [f.flat.tolist() for f in one] == [f.flat.tolist() for f in two]
    with pytest.raises(ValueError, match="at least 1"):
        plan_forwards(mixed_samples(), 0)


def test_nothing_is_padded_and_room_is_used() -> None:
    """13, 13, 10, 8 and 6 tokens, each in the first pass with room for it."""
    forwards = plan_forwards(mixed_samples(), 25)
    assert [forward.lengths for forward in forwards] == [(13, 10), (13, 8), (6,)]
    assert [forward.lengths for forward in plan_forwards(mixed_samples(), 27)] == [(13, 13), (10, 8, 6)]
