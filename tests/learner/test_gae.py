"""Rewards, returns and advantages token by token, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from learner.advantages.gae import gae
from learner.advantages.returns import returns_to_go, token_rewards

WHOLE = torch.ones(3).bool()
HOLE = torch.tensor([True, False, True])


def test_two_steps_by_hand() -> None:
    value = torch.tensor([0.5, 0.2])
    advantage, returns, mask = gae(1.0, value, torch.ones(2).bool(), gamma=0.9, lam=0.8)
    last = 1.0 - 0.2
    first = 0.9 * 0.2 - 0.5 + 0.9 * 0.8 * last
    assert advantage.tolist() == pytest.approx([first, last])
    assert returns.tolist() == pytest.approx([first + 0.5, 1.0])
    assert mask.all()


def test_lambda_1_is_the_return_minus_the_value_and_lambda_0_the_one_step_error() -> None:
    value = torch.tensor([0.5, -0.3, 0.1], dtype=torch.float64)
    monte_carlo, returns, _ = gae(-1.0, value, WHOLE, gamma=0.9, lam=1.0)
    assert returns.tolist() == pytest.approx([-0.81, -0.9, -1.0])
    assert monte_carlo.tolist() == pytest.approx((returns - value).tolist())
    one_step, _, _ = gae(-1.0, value, WHOLE, gamma=0.9, lam=0.0)
    assert one_step.tolist() == pytest.approx([0.9 * -0.3 - 0.5, 0.9 * 0.1 + 0.3, -1.0 - 0.1])


def test_a_perfect_critic_leaves_nothing_to_learn() -> None:
    advantage, returns, _ = gae(1.0, torch.ones(3), WHOLE, gamma=1.0, lam=0.95)
    assert advantage.tolist() == [0.0] * 3
    assert returns.tolist() == [1.0] * 3


def test_what_was_not_sampled_is_no_state() -> None:
    """A tool's output between two sampled tokens: its value and its KL, NaN here, are not looked at."""
    value, kl = torch.tensor([0.5, math.nan, 0.2]), torch.tensor([0.1, math.nan, 0.3])
    advantage, returns, mask = gae(1.0, value, HOLE, gamma=0.9, lam=0.8, kl_T=kl, kl_coefficient=0.5)
    without, their_returns, _ = gae(1.0, value[HOLE], torch.ones(2).bool(), gamma=0.9, lam=0.8, kl_T=kl[HOLE],
                                    kl_coefficient=0.5)  # fmt: skip
    assert advantage[HOLE].tolist() == without.tolist()
    assert returns[HOLE].tolist() == their_returns.tolist()
    assert (advantage[1], returns[1]) == (0, 0)
    assert torch.equal(mask, HOLE)


def test_a_kl_penalty_is_paid_at_each_token_and_the_reward_at_the_last() -> None:
    rewards, mask = token_rewards(1.0, HOLE, kl_T=torch.tensor([0.2, math.nan, -0.4]), kl_coefficient=0.5)
    assert rewards.tolist() == pytest.approx([-0.1, 0.0, 1.2])
    assert torch.equal(mask, HOLE)
    assert returns_to_go(rewards, mask, gamma=0.5).tolist() == pytest.approx([-0.1 + 0.6, 0.0, 1.2])
    # The last token that counts, not the last one.
    assert token_rewards(1.0, torch.tensor([True, True, False]))[0].tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("nothing", [None, math.nan, -math.inf])
def test_without_a_reward_there_is_no_penalty_either(nothing: float | None) -> None:
    advantage, returns, mask = gae(nothing, torch.ones(3), WHOLE, kl_T=torch.ones(3), kl_coefficient=0.1)
    assert (advantage.tolist(), returns.tolist()) == ([0.0] * 3, [0.0] * 3)
    assert not mask.any()


def test_a_neutral_reward_is_one() -> None:
    """With a critic 0 is an outcome: it was expected to be better, or worse."""
    advantage, _, mask = gae(0.0, torch.tensor([0.5]), torch.ones(1).bool())
    assert advantage.tolist() == [-0.5]
    assert mask.all()


def test_an_empty_response_and_one_that_is_masked_whole_give_nothing() -> None:
    for value, mask in ((torch.zeros(0), torch.zeros(0).bool()), (torch.ones(3), ~WHOLE)):
        advantage, returns, used = gae(1.0, value, mask)
        assert advantage.tolist() == returns.tolist() == [0.0] * len(value)
        assert not used.any()


def test_dtypes_stay_and_critics_get_no_gradient() -> None:
    for dtype in (torch.float32, torch.float64):
        value = torch.zeros(3, dtype=dtype, requires_grad=True)
        advantage, returns, _ = gae(1.0, value, WHOLE)
        assert (advantage.dtype, returns.dtype) == (dtype, dtype)
        assert not advantage.requires_grad
        assert not returns.requires_grad


def test_lengths_are_never_made_to_fit() -> None:
    with pytest.raises(ValueError, match="4 values for 3 response tokens"):
        gae(1.0, torch.zeros(4), WHOLE)
    with pytest.raises(ValueError, match="2 KL estimates for 3 response tokens"):
        gae(1.0, torch.zeros(3), WHOLE, kl_T=torch.zeros(2), kl_coefficient=0.1)
    with pytest.raises(ValueError, match="no KL estimates"):
        gae(1.0, torch.zeros(3), WHOLE, kl_coefficient=0.1)


def test_32k_tokens_do_not_drift_in_float32() -> None:
    value = torch.zeros(32_768)
    _, returns, _ = gae(1.0, value, torch.ones(32_768).bool(), gamma=1.0, lam=1.0)
    assert returns.unique().tolist() == [1.0]
