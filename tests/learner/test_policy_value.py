"""Estimates from recorded sessions: by hand, unbiased where the truth is known, and silent where they would guess."""

from __future__ import annotations

import math

import numpy as np
import pytest

from learner.policy_value import Trajectory, estimates


def path(log_weights: list[float], rewards: list[float]) -> Trajectory:
    return Trajectory(np.array(log_weights, dtype=np.float64), np.array(rewards, dtype=np.float64))


NONE = math.nan


def values(paths: list[Trajectory]) -> dict[str, float | None]:
    return {one.method: one.value for one in estimates(paths, least_effective=1.0)}


def test_by_hand() -> None:
    """Two paths. W of the first 2 then 2 x 3 = 6, of the second 1 then (it has ended) 1.

    recorded: (mean(1, -1) + 1) / 2 = 0.5. sequence: (6 x 0 + 1 x 1) / 7. per-decision: step one
    (2 x 1/2 + 1 x 1) / 3, step two (6 x -1/2) / 7.
    """
    found = values([path([math.log(2), math.log(3)], [1, -1]), path([0.0], [1])])
    assert found["recorded"] == pytest.approx(0.5)
    assert found["sequence"] == pytest.approx(1 / 7)
    assert found["per_decision"] == pytest.approx(2 / 3 - 3 / 7)


def test_a_turn_without_a_reward_weighs_and_does_not_count() -> None:
    """Its tokens were said, so its weight counts; its missing reward is not 0."""
    found = values([path([math.log(4), 0.0], [NONE, 1]), path([0.0, 0.0], [NONE, -1]), path([5.0], [NONE])])
    assert found["recorded"] == pytest.approx(0.0)
    assert found["sequence"] == pytest.approx((4 - 1) / 5)
    assert found["per_decision"] == pytest.approx((4 - 1) / 5)


def test_the_policy_that_spoke_earns_what_was_recorded() -> None:
    chance = np.random.default_rng(0)
    paths = [path([0.0] * 3, chance.choice([-1.0, 1.0, NONE], 3).tolist()) for _ in range(50)]
    made = estimates(paths)
    assert made[1].value == pytest.approx(made[0].value)
    assert made[2].value == pytest.approx(made[0].value)
    assert {one.effective for one in made} == {float(made[0].trajectories)}


def test_the_truth_is_within_the_bounds_where_it_is_known() -> None:
    """Each turn says + or - with probability 0.5; the candidate says + with 0.7. A + earns 1 and a - earns -1, so the
    truth is 0.4 a turn."""
    chance = np.random.default_rng(1)
    inside = 0
    for _ in range(20):
        paths = []
        for _ in range(300):
            plus = chance.random(2) < 0.5
            weights = np.where(plus, math.log(0.7 / 0.5), math.log(0.3 / 0.5))
            paths.append(path(weights.tolist(), np.where(plus, 1.0, -1.0).tolist()))
        recorded, per_decision, sequence = estimates(paths)
        assert recorded.value is not None
        assert recorded.value < 0.2
        for one in (per_decision, sequence):
            assert one.value == pytest.approx(0.4, abs=0.2)
            assert one.low is not None
            assert one.high is not None
            inside += one.low <= 0.4 <= one.high
    assert inside >= 34, "of 40 intervals of 95 %"


def test_no_number_where_a_few_paths_would_decide_it() -> None:
    paths = [path([0.0], [-1.0]) for _ in range(99)] + [path([9.0], [1.0])]
    recorded, per_decision, sequence = estimates(paths)
    assert recorded.value == pytest.approx(-0.98)
    for one in (per_decision, sequence):
        assert (one.value, one.low, one.high) == (None, None, None)
        assert one.effective == pytest.approx(1.0, abs=0.1)
        assert one.refused is not None
        assert "effective sample is 1.0 of 100" in one.refused


def test_huge_weights_neither_overflow_nor_hide() -> None:
    made = estimates([path([800.0], [1.0]), path([799.0], [-1.0]), path([-800.0], [1.0])], least_effective=1.0)
    assert made[2].value == pytest.approx((1 - math.exp(-1)) / (1 + math.exp(-1)))


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        ([], "no trajectory has a reward"),
        ([path([0.0], [NONE])], "no trajectory has a reward"),
        ([path([-math.inf], [1.0])], "not finite"),
        ([path([0.0, 0.0], [1.0])], "2 log-weights for 1 rewards"),
    ],
)
def test_what_cannot_be_estimated_is_said(paths: list[Trajectory], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        estimates(paths)
