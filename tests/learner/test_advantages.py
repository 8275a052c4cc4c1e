"""What a token is credited with: by hand, and against peers, who disagree about whose log-prob the student's is."""

from __future__ import annotations

import math

import pytest
import torch
from vectors import case, flat, inputs, needs_reference, same

from learner.advantages.distillation import distillation_advantage
from learner.advantages.reward import reward_advantage

FILE = "04_opd_combined"


@pytest.mark.parametrize("reward", [1.0, -1.0])
def test_every_token_gets_the_turns_reward(reward: float) -> None:
    advantage, mask = reward_advantage(reward, 3)
    assert advantage.tolist() == [reward] * 3
    assert mask.all()


@pytest.mark.parametrize("reward", [None, 0.0, math.nan, math.inf])
def test_no_reward_is_no_credit_rather_than_a_zero(reward: float | None) -> None:
    advantage, mask = reward_advantage(reward, 3)
    assert advantage.tolist() == [0.0] * 3
    assert not mask.any()


def test_distillation_credits_what_the_teacher_likes_better() -> None:
    advantage, mask = distillation_advantage(torch.tensor([-1.0, -3.0]), torch.tensor([-2.0, -0.5]))
    assert advantage.tolist() == [1.0, -2.5]
    assert mask.all()


def test_no_teacher_is_no_credit() -> None:
    advantage, mask = distillation_advantage(None, torch.tensor([-2.0, -0.5]))
    assert advantage.tolist() == [0.0, 0.0]
    assert not mask.any()


def test_a_score_that_is_not_finite_masks_its_token_alone() -> None:
    for junk in (-math.inf, math.nan):
        advantage, mask = distillation_advantage(torch.tensor([-1.0, junk]), torch.tensor([-2.0, -0.5]))
        assert advantage.tolist() == [1.0, 0.0]
        assert mask.tolist() == [True, False]


def test_lengths_are_never_made_to_fit() -> None:
    with pytest.raises(ValueError, match="6 teacher log-probs for 5 response tokens"):
        distillation_advantage(torch.zeros(6), torch.zeros(5))


@needs_reference
def test_peers_agree_where_the_student_is_the_sampler() -> None:
    batch = inputs(FILE, "combined_batch")
    ours, _ = distillation_advantage(flat(batch["teacher_log_probs"]), flat(batch["rollout_log_probs"]))
    combined = ours + flat([[r] * n for r, n in zip(batch["rewards"], batch["response_lengths"], strict=True)])
    same(combined, flat(case(FILE, "combined_advantage_w1_w1_rollout_as_old")["advantages"]).tolist())
    # tinker's layout is shifted and begins with prompt_length - 1 zeros; its mask zeroes the holes. In float32.
    tinker = case(FILE, "tinker_opd_c1")["advantages"]
    answers = [row[prompt - 1 :] for row, prompt in zip(tinker, batch["prompt_lengths"], strict=True)]
    kept = flat(batch["loss_masks"]).bool()
    same(combined[kept], flat(answers)[kept].tolist(), rtol=1e-5, atol=1e-6)


@needs_reference
def test_slime_and_openclaw_measure_from_recomputed_log_probs_which_leaks_into_turns_without_a_teacher() -> None:
    """The design's l_old is the engine's. Theirs is the trainer's, so an RL-only turn, to which OpenClaw gives the
    engine's log-probs as teacher's, gets the mismatch as a credit. Ours gets none."""
    batch = inputs(FILE, "combined_batch")
    theirs = case(FILE, "slime_opd_coef1.0")["advantages"]
    ours, _ = distillation_advantage(flat(batch["teacher_log_probs"]), flat(batch["old_log_probs"]))
    rewards = flat([[r] * n for r, n in zip(batch["rewards"], batch["response_lengths"], strict=True)])
    same(ours + rewards, flat(theirs).tolist())
    rl_only = batch["kinds"].index("rl_only")
    leak = torch.tensor(theirs[rl_only]) - batch["rewards"][rl_only]
    assert float(leak.abs().max()) > 0.05
    engine = torch.tensor(batch["rollout_log_probs"][rl_only])
    none, _ = distillation_advantage(torch.tensor(batch["teacher_log_probs"][rl_only]), engine)
    assert none.tolist() == [0.0] * len(engine)


@needs_reference
def test_prime_rl_measures_from_the_current_policy() -> None:
    """Its gradient, -(l_T - l_new) ratio + 2e-3 log-ratio, is of another advantage than l_T - l_old."""
    batch = inputs(FILE, "combined_batch")
    new = flat(case(FILE, "openclaw_forward")["log_probs"])
    teacher, engine = flat(batch["teacher_log_probs"]), flat(batch["rollout_log_probs"])
    gap = new - engine
    theirs = flat(case(FILE, "prime_ref_kl")["grad_log_probs"])
    expected = -(teacher - new) * gap.exp() + 2e-3 * gap
    # Tokens that lost more than 0.2 of probability it leaves out.
    kept = flat(batch["loss_masks"]).bool() & (engine.exp() - new.exp() <= 0.2)
    same(theirs[kept], expected[kept].tolist())
    ours, _ = distillation_advantage(teacher, engine)
    assert float((ours - (teacher - new)).abs().max()) > 0.1
