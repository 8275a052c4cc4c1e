"""What goes wrong in real batches, over every advantage: nothing to compare with, no reward, no teacher, no tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from learner.advantages.batch_baseline import batch_baseline_advantage
from learner.advantages.distillation import distillation_advantage
from learner.advantages.extrapolated import extrapolated_advantage
from learner.advantages.gae import gae
from learner.advantages.group import group_advantage, leave_one_out_advantage
from learner.advantages.mirror_descent import mirror_descent_advantage
from learner.advantages.returns import returns_to_go, token_rewards
from learner.advantages.reward import reward_advantage
from learner.advantages.session_baseline import session_baseline_advantage
from learner.advantages.topk import topk_advantage
from learner.advantages.whitening import whiten

Rewards = Sequence[float | None]
Result = tuple[Tensor, Tensor]


def per_sample(of_one: Callable[[float | None], Result]) -> Callable[[Rewards], Result]:
    """An advantage that looks at one sample at a time, here of one token each."""

    def of(rewards: Rewards) -> Result:
        results = [of_one(reward) for reward in rewards]
        nothing = [torch.zeros(0)], [torch.zeros(0).bool()]
        return torch.cat([one for one, _ in results] + nothing[0]), torch.cat([two for _, two in results] + nothing[1])

    return of


def critic(reward: float | None) -> Result:
    advantage, _, mask = gae(reward, torch.zeros(1), torch.ones(1).bool())
    return advantage, mask


def to_go(reward: float | None) -> Result:
    rewards, mask = token_rewards(reward, torch.ones(1).bool())
    return returns_to_go(rewards, mask).float(), mask


COMPARING: dict[str, Callable[[Rewards], Result]] = {
    "grpo": lambda rewards: group_advantage(rewards, ["a"] * len(rewards)),
    "dr-grpo": lambda rewards: group_advantage(rewards, ["a"] * len(rewards), std=False),
    "leave one out": lambda rewards: leave_one_out_advantage(rewards, ["a"] * len(rewards)),
    "reinforce++": lambda rewards: batch_baseline_advantage(rewards, [3] * len(rewards)),
    "k1.5": mirror_descent_advantage,
}
ALONE: dict[str, Callable[[Rewards], Result]] = {
    "binary-rl": per_sample(lambda reward: reward_advantage(reward, 1)),
    "session-baseline": lambda rewards: session_baseline_advantage(rewards, [[]] * len(rewards)),
    "ppo": per_sample(critic),
    "returns": per_sample(to_go),
}
REWARDED = COMPARING | ALONE


@pytest.mark.parametrize("name", REWARDED)
@pytest.mark.parametrize("nothing", [None, math.nan, math.inf, -math.inf])
def test_a_sample_without_a_reward_is_masked_and_the_rest_is_as_without_it(name: str, nothing: float | None) -> None:
    of = REWARDED[name]
    advantage, mask = of([1.0, nothing, -1.0, 0.5])
    assert mask.tolist() == [True, False, True, True]
    assert advantage[1] == 0
    assert advantage.isfinite().all()
    without, _ = of([1.0, -1.0, 0.5])
    assert advantage[mask].tolist() == without.tolist()


@pytest.mark.parametrize("name", COMPARING)
@pytest.mark.parametrize("rewards", [[0.7], [1.0, 1.0, 1.0], [0.0, 0.0], [None, 1.0], [math.nan, None], [0.1] * 7, []])
def test_where_there_is_nothing_to_compare_nothing_is_trained(name: str, rewards: Rewards) -> None:
    """A group of one, zero variance, one reward left. 0.1 seven times: its mean is not 0.1 in floats."""
    advantage, mask = COMPARING[name](rewards)
    assert advantage.tolist() == [0.0] * len(rewards)
    assert not mask.any()


@pytest.mark.parametrize("name", REWARDED)
def test_better_is_credited_more_and_types_are_as_promised(name: str) -> None:
    advantage, mask = REWARDED[name]([-1.0, 1.0, 0.5])
    assert (advantage.dtype, mask.dtype) == (torch.float32, torch.bool)
    assert advantage[1] > advantage[2] > advantage[0]
    assert mask.all()


def teacher_and(behaviour: Tensor, teacher: Tensor | None) -> dict[str, Result]:
    """Every advantage of a teacher; the top-k one of two entries a token."""
    entries = None if teacher is None else torch.stack([teacher, teacher - 1], -1)
    return {
        "opd": distillation_advantage(teacher, behaviour),
        "exopd": extrapolated_advantage(teacher, torch.full_like(behaviour, -1.0), behaviour),
        "opd-topk": topk_advantage(entries, torch.stack([behaviour, behaviour - 1], -1)),
    }


DISTILLING = ("opd", "exopd", "opd-topk")


@pytest.mark.parametrize("name", DISTILLING)
def test_without_a_teacher_or_without_tokens_there_is_no_credit(name: str) -> None:
    for behaviour, teacher in ((torch.tensor([-1.0, -2.0]), None), (torch.zeros(0), torch.zeros(0))):
        advantage, mask = teacher_and(behaviour, teacher)[name]
        assert advantage.numel() == mask.numel()
        assert advantage.count_nonzero() == 0
        assert not mask.any()


@pytest.mark.parametrize("name", DISTILLING)
def test_a_score_that_is_missing_masks_its_token_alone(name: str) -> None:
    behaviour = torch.tensor([-1.0, -1.0, -1.0])
    advantage, mask = teacher_and(behaviour, torch.tensor([-0.5, math.nan, -0.5]))[name]
    whole, _ = teacher_and(behaviour, torch.tensor([-0.5, -0.5, -0.5]))[name]
    assert advantage[[0, 2]].tolist() == whole[[0, 2]].tolist()
    assert advantage[1].count_nonzero() == 0
    assert not mask[1].any()
    assert mask[[0, 2]].all()


@pytest.mark.parametrize("name", DISTILLING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_impossible_tokens_leave_everything_finite(name: str, dtype: torch.dtype) -> None:
    impossible, possible = torch.tensor([-math.inf, -1.0], dtype=dtype), torch.tensor([-1.0, -1.0], dtype=dtype)
    for teacher, behaviour in ((impossible, possible), (possible, impossible), (impossible, impossible)):
        advantage, mask = teacher_and(behaviour, teacher)[name]
        assert advantage.dtype == dtype
        assert advantage.isfinite().all()
        assert mask[1].all()
        assert (advantage[~mask] == 0).all()


def test_whitening_what_is_alone_or_equal_masks_it() -> None:
    for values in ([1.0], [0.1] * 7, []):
        whitened, mask = whiten(torch.tensor(values), torch.ones(len(values)).bool())
        assert whitened.tolist() == [0.0] * len(values)
        assert not mask.any()


def test_a_truncated_answer_counts_in_no_divisor_and_no_baseline() -> None:
    """Its reward is withheld (None) and its tokens masked: the whole answer beside it is alone, and not trained."""
    advantage, mask = group_advantage([1.0, None], ["a", "a"])
    assert not mask.any()
    assert advantage.tolist() == [0.0, 0.0]
    batch, kept = batch_baseline_advantage([1.0, -1.0, 1.0], [4, 4, 0])
    assert kept.tolist() == [True, True, False]
    assert batch[0] == -batch[1]
