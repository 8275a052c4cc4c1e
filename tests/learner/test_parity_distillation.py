"""The cases of on-policy distillation that other tests do not name: what peers make of the same scores."""

from __future__ import annotations

import torch
from torch import Tensor
from vectors import Parity, flat, matrix, needs_reference, same

from learner.advantages.distillation import distillation_advantage
from learner.advantages.returns import returns_to_go
from learner.losses.mirror_descent import mirror_descent
from learner.losses.ppo_clip import ppo_clip

parity = Parity(
    "04_opd_combined",
    elsewhere={
        # test_advantages.py
        "combined_advantage_w1_w1_rollout_as_old", "tinker_opd_c1", "slime_opd_coef1.0", "prime_ref_kl",
        # test_objective.py
        "openclaw_forward", "openclaw_combined_w0.5_w2", "openclaw_combined_w1_w0", "openclaw_combined_w0_w1",
        "openclaw_combined_w1_w1_rollout_as_old", "openclaw_combined_w1_w1_kl0.1_entropy0.01",
    },
)  # fmt: skip

FLOAT32 = {"rtol": 1e-5, "atol": 1e-6}


def tokens(key: str) -> Tensor:
    return flat(parity.inputs("combined_batch")[key])


def kept() -> Tensor:
    return tokens("loss_masks").bool()


def rewards() -> Tensor:
    given = parity.inputs("combined_batch")
    return flat([[r] * n for r, n in zip(given["rewards"], given["response_lengths"], strict=True)])


def gain(student: str) -> Tensor:
    advantage, mask = distillation_advantage(tokens("teacher_log_probs"), tokens(student))
    assert mask.all()
    return advantage


def answers(table: list[list[float]]) -> Tensor:
    """Of the shifted layout, in which prompt_length - 1 entries come first."""
    prompts = parity.inputs("combined_batch")["prompt_lengths"]
    return flat([row[prompt - 1 :] for row, prompt in zip(table, prompts, strict=True)])


@parity("combined_advantage_w0.5_w2", "slime_opd_coef0.5")
def test_weights_of_the_two_signals(title: str) -> None:
    w_rl = 2.0 if title.startswith("combined") else 1.0
    same(0.5 * gain("old_log_probs") + w_rl * rewards(), flat(parity.case(title)["advantages"]).tolist())


@parity("openclaw_tinker_combined_w0.5_w2_k0.7", "openclaw_tinker_opd_k0.5")
def test_a_further_coefficient_on_the_teacher_is_one_weight_of_ours(title: str) -> None:
    """It measures from the sampler, as ours does, and zeroes what is masked."""
    w_opd, w_rl = (0.5 * 0.7, 2.0) if "combined" in title else (0.5, 1.0)
    ours = w_opd * gain("rollout_log_probs") + w_rl * rewards()
    same(ours[kept()], answers(parity.case(title)["advantages"])[kept()].tolist(), **FLOAT32)


@parity("tinker_opd_c1_d0.9")
def test_tinker_can_credit_a_token_with_the_gains_that_follow_it(title: str) -> None:
    """Ours credits each token with its own gain (discount 0), as all other peers: the teacher scored that very token.
    Theirs, discounted, also reaches the prompt's tokens, which nobody sampled."""
    theirs = parity.case(title)["advantages"]
    own = (gain("rollout_log_probs") * kept()).split(parity.inputs("combined_batch")["response_lengths"])
    everywhere = [torch.ones(len(row)).bool() for row in own]
    summed = [returns_to_go(row, mask, gamma=0.9) for row, mask in zip(own, everywhere, strict=True)]
    same((torch.cat(summed) + rewards())[kept()], answers(theirs)[kept()].tolist(), **FLOAT32)
    assert theirs[0][0] < -0.8
    assert parity.inputs("combined_batch")["prompt_lengths"][0] == 3


@parity("prime_default")
def test_prime_rl_weighs_by_the_unclipped_ratio_and_pulls_back_softly(title: str) -> None:
    """Its gradient is ours of mirror descent with tau 2e-3, but for the ratio as a weight of the reward's part."""
    new, old = flat(parity.case("openclaw_forward")["log_probs"]).requires_grad_(), tokens("rollout_log_probs")
    mirror_descent(new, old, rewards(), kept(), tau=2e-3).sum().backward()
    assert new.grad is not None
    ratio = (new.detach() - old).exp()
    difference = -rewards() * (ratio - 1) * kept()
    same(new.grad + difference, flat(parity.case(title)["grad_log_probs"]).tolist())


@parity("sdpo_token_no_is")
def test_sdpos_token_form_is_our_first_step(title: str) -> None:
    """It measures from the current policy, which at the first step is the one from before it."""
    theirs = parity.case(title)
    mask = matrix(theirs["inputs"]["mask"]).bool()
    student, teacher = matrix(theirs["inputs"]["student"]).requires_grad_(), matrix(theirs["inputs"]["teacher"])
    advantage, _ = distillation_advantage(teacher, student.detach())
    token = ppo_clip(student, student.detach(), advantage, mask, clip_low=0.2, clip_high=0.2).loss
    (token.sum() / mask.sum()).backward()
    assert student.grad is not None
    same(student.grad, theirs["grad_student"])


@needs_reference
def test_every_case_has_a_test() -> None:
    parity.check_complete()
