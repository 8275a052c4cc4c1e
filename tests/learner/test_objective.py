"""Components and their normalisers: by hand, and against OpenClaw's combined loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import make_sample, mixed_samples
from torch import Tensor
from vectors import case, flat, inputs, matrix, needs_reference, owners, same

from learner.aggregation import token_weights
from learner.importance import MismatchSpec, mismatch_weights
from learner.logprobs import token_log_probs
from learner.losses.kl import kl_estimate
from learner.losses.ppo_clip import ppo_clip
from learner.objective import StepOptions, build_objective
from learner.samples import InvalidSample, TrainingSample

FILE = "04_opd_combined"
# A scored turn of 2 tokens, and a hinted one of 3 that nobody scored.
SCORED = make_sample(1, response=2, reward=-1.0)
HINTED = make_sample(2, response=3, reward=None, teacher=True)


def test_each_component_is_normalised_by_its_own_tokens() -> None:
    objective = build_objective([SCORED, HINTED], StepOptions(w_rl=2.0, w_opd=0.5))
    rl, opd = objective.components
    assert (rl.name, opd.name) == ("rl", "opd")
    assert rl.weight.tolist() == pytest.approx([2 / 2] * 2 + [0] * 3)
    assert opd.weight.tolist() == pytest.approx([0] * 2 + [0.5 / 3] * 3)
    assert rl.advantage[:2].tolist() == [-1.0, -1.0]
    assert HINTED.teacher_logprobs is not None
    expected = HINTED.teacher_logprobs - HINTED.response_logprobs
    np.testing.assert_array_equal(opd.advantage[2:].numpy(), expected)
    assert objective.kept_weight.tolist() == pytest.approx([1 / 5] * 5)


def test_the_batch_normaliser_sums_advantages_and_divides_by_all_kept_tokens() -> None:
    neutral = make_sample(3, response=4, reward=0.0)
    both = make_sample(4, response=1, reward=1.0, teacher=True)
    options = StepOptions(w_rl=2.0, w_opd=0.5, normaliser="batch")
    (combined,) = build_objective([SCORED, neutral, HINTED, both], options).components
    assert combined.weight.tolist() == pytest.approx([1 / 6] * 2 + [0] * 4 + [1 / 6] * 4)
    assert combined.advantage[:2].tolist() == [-2.0, -2.0]
    assert both.teacher_logprobs is not None
    gap = float(both.teacher_logprobs[0] - both.response_logprobs[0])
    assert float(combined.advantage[-1]) == pytest.approx(2.0 + 0.5 * gap)


def test_more_hints_do_not_dilute_the_reward_component_but_do_in_the_batch_normaliser() -> None:
    few, many = [SCORED, HINTED], [SCORED, *[HINTED] * 9]
    for normaliser, diluted in (("component", False), ("batch", True)):
        options = StepOptions(normaliser=normaliser)  # type: ignore[arg-type]
        one, other = (float(build_objective(samples, options).components[0].weight[0]) for samples in (few, many))
        assert (other < one) is diluted


def test_recipes_leave_a_component_out_by_its_weight() -> None:
    binary = build_objective(mixed_samples(), StepOptions(w_opd=0.0))
    assert [component.name for component in binary.components] == ["rl"]
    assert binary.kept.sum() == 7 + 2 + 1
    opd = build_objective(mixed_samples(), StepOptions(w_rl=0.0))
    assert [component.name for component in opd.components] == ["opd"]
    assert opd.kept.sum() == 2 + 11


def test_a_truncated_answer_leaves_numerator_and_divisor() -> None:
    whole, cut = make_sample(1, response=4), make_sample(2, response=4, truncated=True)
    (rl,) = build_objective([whole, cut], StepOptions(train_truncated=False)).components
    assert rl.weight.tolist() == [0.25] * 4 + [0.0] * 4
    (rl,) = build_objective([whole, cut], StepOptions()).components
    assert rl.weight.tolist() == [0.125] * 8


def test_nothing_to_learn_is_no_component() -> None:
    neutral = [make_sample(1, reward=0.0), make_sample(2, reward=None)]
    for normaliser in ("component", "batch"):
        objective = build_objective(neutral, StepOptions(normaliser=normaliser))  # type: ignore[arg-type]
        assert objective.components == []
        assert not objective.kept.any()


def test_an_invalid_sample_is_refused() -> None:
    empty = TrainingSample(
        sample_id="e",
        prompt_ids=np.zeros(0, np.int32),
        response_ids=np.zeros(0, np.int32),
        response_logprobs=np.zeros(0, np.float32),
        reward=1.0,
    )
    with pytest.raises(InvalidSample, match="no_tokens"):
        build_objective([empty], StepOptions())


def openclaw(w_opd: float, w_rl: float, *, old: str, kl: float = 0.0, entropy: float = 0.0) -> tuple[Tensor, Tensor]:
    """OpenClaw's combined loss in our parts, and its gradient on the logits: one surrogate of the summed advantage,
    the mean over sequences of token means (times 4: theirs is a sum over the 4)."""
    batch = inputs(FILE, "combined_batch")
    logits = matrix(batch["packed_logits"]).requires_grad_()
    rows, start = [], 0
    for prompt, response in zip(batch["prompt_lengths"], batch["response_lengths"], strict=True):
        rows += range(start + prompt - 1, start + prompt + response - 1)
        start += prompt + response
    targets = flat([row[-n:] for row, n in zip(batch["tokens"], batch["response_lengths"], strict=True)]).long()
    new, entropy_N = token_log_probs(logits[rows], torch.eye(batch["vocab"], dtype=torch.float64), targets)
    behaviour, mask = flat(batch[old]), flat(batch["loss_masks"]).bool()
    rewards = flat([[r] * n for r, n in zip(batch["rewards"], batch["response_lengths"], strict=True)])
    advantage = w_opd * (flat(batch["teacher_log_probs"]) - behaviour) + w_rl * rewards
    weight = token_weights(mask, owners(batch["old_log_probs"]), "sequence_mean").double() * 4
    loss = (ppo_clip(new, behaviour, advantage, mask, clip_low=0.2, clip_high=0.28).loss * weight).sum()
    loss = loss + kl * (kl_estimate(new, flat(batch["ref_log_probs"]), mask, "k3") * weight).sum()
    loss = loss - entropy * (entropy_N * weight).sum()
    loss.backward()
    assert logits.grad is not None
    return loss.detach(), logits.grad


@needs_reference
@pytest.mark.parametrize(
    ("title", "w_opd", "w_rl", "old"),
    [
        ("openclaw_combined_w0.5_w2", 0.5, 2.0, "old_log_probs"),
        ("openclaw_combined_w1_w0", 1.0, 0.0, "old_log_probs"),
        ("openclaw_combined_w0_w1", 0.0, 1.0, "old_log_probs"),
        ("openclaw_combined_w1_w1_rollout_as_old", 1.0, 1.0, "rollout_log_probs"),
    ],
)
def test_openclaws_combined_loss(title: str, w_opd: float, w_rl: float, old: str) -> None:
    same(openclaw(w_opd, w_rl, old=old)[0], case(FILE, title)["loss"], rtol=1e-6)


@needs_reference
def test_openclaws_combined_loss_with_kl_and_entropy_and_its_gradient() -> None:
    expected = case(FILE, "openclaw_combined_w1_w1_kl0.1_entropy0.01")
    loss, gradient = openclaw(1.0, 1.0, old="old_log_probs", kl=0.1, entropy=0.01)
    same(loss, expected["loss"], rtol=1e-6)  # its KL passes through float32
    same(gradient, expected["grad_packed_logits"], rtol=1e-5, atol=1e-7)


@needs_reference
def test_the_batch_normaliser_is_openclaws_rule_where_every_turn_has_a_signal() -> None:
    """The same through `build_objective`, with the engine's log-probs as old and no holes; float32."""
    batch = inputs(FILE, "combined_batch")
    samples = [
        TrainingSample(
            sample_id=kind,
            prompt_ids=np.array(tokens[:prompt], np.int32),
            response_ids=np.array(tokens[prompt:], np.int32),
            response_logprobs=np.array(engine, np.float32),
            reward=reward,
            teacher_logprobs=None if kind == "rl_only" else np.array(teacher, np.float32),
        )
        for kind, tokens, prompt, engine, reward, teacher in zip(
            batch["kinds"], batch["tokens"], batch["prompt_lengths"], batch["rollout_log_probs"], batch["rewards"],
            batch["teacher_log_probs"], strict=True,
        )
    ]  # fmt: skip
    (combined,) = build_objective(samples, StepOptions(normaliser="batch")).components
    expected = case(FILE, "combined_advantage_w1_w1_rollout_as_old")["advantages"]
    same(combined.advantage, flat(expected).tolist(), rtol=1e-5, atol=1e-6)


def test_a_correction_of_one_changes_nothing() -> None:
    """At zero updates and without mismatch the decoupled objective is the plain one."""
    log_probs, mask = torch.tensor([-1.0, -2.0]), torch.ones(2).bool()
    truncate = MismatchSpec(kind="truncate", high=2.0)
    weight, _ = mismatch_weights(log_probs, log_probs, mask, torch.zeros(2, dtype=torch.long), truncate)
    assert weight.tolist() == [1.0, 1.0]
