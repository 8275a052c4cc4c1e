"""Advantages that compare a sample with others: its group, its micro-batch, its session. By hand, and in what holds for
any rewards."""

from __future__ import annotations

import math
import random

import pytest
import torch

from learner.advantages.batch_baseline import batch_baseline_advantage
from learner.advantages.group import group_advantage, leave_one_out_advantage
from learner.advantages.mirror_descent import mirror_descent_advantage
from learner.advantages.session_baseline import session_baseline_advantage
from learner.advantages.whitening import whiten


def test_a_group_by_hand() -> None:
    rewards, groups = [1.0, 0.0, 0.0, 5.0, 3.0], ["a", "a", "a", "b", "b"]
    advantage, mask = group_advantage(rewards, groups)
    std_a = math.sqrt(((2 / 3) ** 2 + 2 * (1 / 3) ** 2) / 2)
    expected = [2 / 3 / std_a, -1 / 3 / std_a, -1 / 3 / std_a, math.sqrt(0.5), -math.sqrt(0.5)]
    assert advantage.tolist() == pytest.approx(expected, rel=1e-5)
    assert mask.all()
    assert group_advantage(rewards, groups, std=False)[0].tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3, 1, -1])
    assert leave_one_out_advantage(rewards, groups)[0].tolist() == pytest.approx([1.0, -0.5, -0.5, 2.0, -2.0])


def test_an_unscorable_sibling_shifts_no_baseline() -> None:
    """[1, 1, nothing] is not [.33, .33, -.67]: it is a group of two that says nothing."""
    for nothing in (None, math.nan, math.inf):
        advantage, mask = group_advantage([1.0, 1.0, nothing], ["a"] * 3)
        assert advantage.tolist() == [0.0] * 3
        assert not mask.any()
        advantage, mask = group_advantage([0.5, nothing, 1.5], ["a"] * 3, std=False)
        assert advantage.tolist() == [-0.5, 0.0, 0.5]
        assert mask.tolist() == [True, False, True]


def test_a_sample_of_no_group_is_alone_even_beside_others_of_no_group() -> None:
    advantage, mask = group_advantage([1.0, -1.0], [None, None])
    assert advantage.tolist() == [0.0, 0.0]
    assert not mask.any()


def test_a_group_may_lie_anywhere_in_the_batch() -> None:
    together, _ = group_advantage([1.0, 0.0, 5.0, 3.0], ["a", "a", "b", "b"])
    apart, _ = group_advantage([1.0, 5.0, 0.0, 3.0], ["a", "b", "a", "b"])
    assert apart.tolist() == together[[0, 2, 1, 3]].tolist()


def test_advantages_of_a_group_sum_to_0_and_do_not_depend_on_scale_or_shift() -> None:
    draw = random.Random(3)
    rewards = [draw.gauss(0, 1) for _ in range(9)]
    groups = ["a"] * 4 + ["b"] * 5
    plain, _ = group_advantage(rewards, groups)
    moved, _ = group_advantage([7 + 40 * reward for reward in rewards], groups)
    assert moved.tolist() == pytest.approx(plain.tolist(), rel=1e-5, abs=1e-6)
    for part in (slice(0, 4), slice(4, 9)):
        assert float(plain[part].sum()) == pytest.approx(0, abs=1e-5)


def test_differences_of_a_millionth_are_held_back() -> None:
    advantage, mask = group_advantage([2e-6, 0.0], ["a", "a"])
    assert mask.all()
    assert advantage.tolist() == pytest.approx([1 / (math.sqrt(2) + 1), -1 / (math.sqrt(2) + 1)], rel=1e-5)


def test_rewards_that_differ_by_rounding_are_equal() -> None:
    assert not group_advantage([0.1 + 0.2, 0.3], ["a", "a"])[1].any()


def test_a_large_reward_keeps_its_differences() -> None:
    advantage, _ = group_advantage([100_000_001.0, 100_000_000.0], ["a", "a"], std=False)
    assert advantage.tolist() == [0.5, -0.5]


def test_mirror_descent_takes_the_micro_batch_for_a_group_where_there_are_none() -> None:
    advantage, mask = mirror_descent_advantage([1.0, 0.0, None])
    assert advantage.tolist() == [0.5, -0.5, 0.0]
    assert mask.tolist() == [True, True, False]
    grouped, _ = mirror_descent_advantage([1.0, 0.0, 0.0, -1.0], ["a", "b", "a", "b"])
    assert grouped.tolist() == [0.5, 0.5, -0.5, -0.5]


def test_a_batch_baseline_by_hand() -> None:
    """Answers of 1 and 3 tokens: mean (1 - 3) / 4, unbiased variance 1 over four tokens."""
    advantage, mask = batch_baseline_advantage([1.0, -1.0], [1, 3])
    assert advantage.tolist() == pytest.approx([1.5, -0.5])
    assert mask.all()


def test_a_batch_baseline_leaves_out_what_has_no_reward_or_no_tokens() -> None:
    advantage, mask = batch_baseline_advantage([1.0, None, -1.0, math.nan, 1.0], [1, 50, 3, 50, 0])
    assert advantage.tolist() == pytest.approx([1.5, 0.0, -0.5, 0.0, 0.0])
    assert mask.tolist() == [True, False, True, False, False]


@pytest.mark.parametrize(("rewards", "lengths"), [([1.0, 1.0], [3, 4]), ([1.0], [1]), ([None], [4]), ([], [])])
def test_a_batch_that_says_nothing_is_masked(rewards: list[float | None], lengths: list[int]) -> None:
    advantage, mask = batch_baseline_advantage(rewards, lengths)
    assert advantage.tolist() == [0.0] * len(rewards)
    assert not mask.any()


def test_a_session_is_compared_with_its_own_past() -> None:
    advantage, mask = session_baseline_advantage(
        [1.0, -1.0, 1.0, 1.0, None, 0.0],
        [[], [1.0], [1.0, -1.0, None, math.nan], [1.0, 1.0], [1.0], [1.0, 1.0, -1.0, 1.0]],
    )
    assert advantage.tolist() == [1.0, -2.0, 1.0, 0.0, 0.0, -0.5]
    # A user who is always pleased says nothing with one more vote.
    assert mask.tolist() == [True, True, True, False, False, True]


def test_a_neutral_first_turn_has_nothing_to_differ_from() -> None:
    advantage, mask = session_baseline_advantage([0.0, math.nan], [[], [1.0]])
    assert advantage.tolist() == [0.0, 0.0]
    assert not mask.any()


def test_whitened_values_have_mean_0_and_variance_1_over_kept_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        values = 5 + 3 * torch.randn(40, generator=generator, dtype=dtype)
        mask = torch.rand(40, generator=generator) > 0.3
        values[~mask] = math.nan
        whitened, used = whiten(values, mask)
        assert whitened.dtype == dtype
        assert torch.equal(used, mask)
        assert whitened[~mask].tolist() == [0.0] * int((~mask).sum())
        assert float(whitened[mask].mean()) == pytest.approx(0, abs=1e-6)
        assert float(whitened[mask].var()) == pytest.approx(1, rel=1e-5)


def test_lists_of_different_length_are_refused() -> None:
    for call in (
        lambda: group_advantage([1.0], ["a", "a"]),
        lambda: leave_one_out_advantage([1.0], ["a", "a"]),
        lambda: batch_baseline_advantage([1.0], [1, 2]),
        lambda: session_baseline_advantage([1.0], []),
        lambda: mirror_descent_advantage([1.0], ["a", "a"]),
    ):
        with pytest.raises(ValueError, match="argument 2"):
            call()
