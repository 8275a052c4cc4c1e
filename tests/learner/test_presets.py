"""Every preset on a tiny Llama: what was rewarded rises, what was punished falls, what was left out stays; the same
gradient however the batch is split; the samples that carried are all that the step needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import VOCABULARY, make_sample, on_policy, same_weights, tiny_model, weights

from learner.collate import plan_forwards
from learner.companions import FrozenModel
from learner.critic import Critic
from learner.logprobs import response_scores
from learner.measuring import Others
from learner.options import step_options
from learner.samples import TrainingSample
from learner.step import PolicyTrainer
from learner.step_options import StepOptions
from schemas.recipes import PRESETS, recipe_named

IMITATING = ("liked", "pairs")
"""Advantages that need more than a reward of each sign, or look at one sign alone: see test_offline_losses.py."""
REWARDED = [name for name, recipe in PRESETS.items() if recipe.loss.w_rl and recipe.advantage.kind not in IMITATING]
TAUGHT = [name for name, recipe in PRESETS.items() if recipe.loss.w_opd]
OWN_TEACHER = [name for name in TAUGHT if (teacher := PRESETS[name].teacher) and teacher.weights != "server"]
K = 16
"""Entries that the served teacher scores here: enough that some of the student's likeliest are among them."""


def options_of(name: str, **more: Any) -> StepOptions:
    """The preset's options at a learning rate that shows in one step of a model of this size."""
    return replace(step_options(recipe_named(name), 1000), lr=2e-3, **more)


def others_of(model: Any, options: StepOptions, reference: int) -> Others:
    """What the preset asks beside the policy: a reference and a teacher of these seeds (0 is the policy itself)."""
    return Others(
        reference=FrozenModel(tiny_model(reference)) if options.needs_reference else None,
        teacher=FrozenModel(tiny_model(8)) if options.needs_teacher else None,
        critic=Critic(model, options.critic) if options.critic else None,
    )


def trainer_of(name: str, reference: int = 7, **more: Any) -> PolicyTrainer:
    model, options = tiny_model(), options_of(name, **more)
    return PolicyTrainer(model, options, others_of(model, options, reference))


def scored(seed: int, reward: float | None, group: str | None = "g", **more: Any) -> TrainingSample:
    """A candidate as the model itself answers."""
    sample = on_policy(tiny_model(), make_sample(seed, reward=reward, **more))
    return replace(sample, group_id=group, earlier_rewards=(0.0,) if reward else ())


def greedy(seed: int, gain: float) -> TrainingSample:
    """The model's likeliest answer, and a teacher that likes each of its tokens more or less by `gain` nats."""
    sample, model = make_sample(seed, reward=None), tiny_model()
    ids = torch.from_numpy(sample.prompt_ids.astype(np.int64))[None]
    for _ in sample.response_ids:
        ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
    sample = on_policy(
        model, replace(sample, response_ids=ids[0, -len(sample.response_ids) :].numpy().astype(np.int32))
    )
    (forward,) = plan_forwards([sample], 1)
    with torch.no_grad():
        scores = response_scores(model, forward, top_k=K)
    assert scores.top_ids is not None
    assert scores.top_logprobs is not None
    scores.top_logprobs[:, 0] += gain
    return replace(
        sample,
        teacher_logprobs=sample.response_logprobs + np.float32(gain),
        teacher_topk_ids=scores.top_ids.numpy().astype(np.int32),
        teacher_topk_logprobs=scores.top_logprobs.numpy(),
    )


def hinted(seed: int, teacher_seed: int = 8, **more: Any) -> TrainingSample:
    """An answer of the model, scored by another one after a longer prompt."""
    sample = on_policy(tiny_model(), make_sample(seed, reward=None, response=6, **more))
    prompt = np.concatenate([sample.prompt_ids, np.array([5, 9, 11], np.int32)])
    (forward,) = plan_forwards([replace(sample, prompt_ids=prompt)], 1)
    with torch.no_grad():
        scores = response_scores(tiny_model(teacher_seed), forward, top_k=K)
    assert scores.top_ids is not None
    assert scores.top_logprobs is not None
    return replace(
        sample,
        hinted_prompt_ids=prompt,
        teacher_logprobs=scores.chosen.numpy(),
        teacher_topk_ids=scores.top_ids.numpy().astype(np.int32),
        teacher_topk_logprobs=scores.top_logprobs.numpy(),
    )


def batch() -> list[TrainingSample]:
    """Two groups, taught turns, a turn of no use; some off-policy, all of different lengths."""
    stale = make_sample(3, response=4, reward=1.0, behaviour=-4.0)
    return [
        replace(scored(1, 1.0, response=7), pair=("g", True)),
        replace(scored(2, -1.0, response=2), pair=("g", False)),
        replace(stale, group_id="h", earlier_rewards=(-1.0, None, 1.0)),
        scored(4, -1.0, "h", response=9),
        replace(hinted(5), reward=1.0, group_id="h"),
        hinted(6),
        make_sample(7, reward=None),
    ]


def log_prob(model: Any, sample: TrainingSample) -> float:
    return float(on_policy(model, sample).response_logprobs.sum())


@pytest.mark.parametrize("name", REWARDED)
def test_what_was_rewarded_rises_and_what_was_punished_falls(name: str) -> None:
    good, bad, unscored = scored(1, 1.0), scored(2, -1.0), scored(3, None)
    trainer = trainer_of(name)
    before = [log_prob(trainer.model, sample) for sample in (good, bad)]
    result = trainer.train([good, bad, unscored])
    assert result.skipped_reason is None
    assert result.carried == [True, True, False]
    after = [log_prob(trainer.model, sample) for sample in (good, bad)]
    assert after[0] > before[0] + 0.01
    assert after[1] < before[1] - 0.01


@pytest.mark.parametrize("name", [name for name in TAUGHT if name not in OWN_TEACHER])
def test_what_the_teacher_likes_more_rises_and_what_it_likes_less_falls(name: str) -> None:
    liked, disliked = greedy(1, 1.0), greedy(2, -1.0)
    trainer = trainer_of(name, reference=0)
    before = [log_prob(trainer.model, sample) for sample in (liked, disliked)]
    assert trainer.train([liked, disliked, scored(3, None)]).carried == [True, True, False]
    after = [log_prob(trainer.model, sample) for sample in (liked, disliked)]
    assert after[0] > before[0] + 0.01
    assert after[1] < before[1] - 0.01


@pytest.mark.parametrize("name", OWN_TEACHER)
def test_the_policy_moves_towards_a_teacher_inside_the_learner(name: str) -> None:
    """KL(teacher with the hint || policy without it) falls over the answers' places."""
    samples = [hinted(seed) for seed in range(4)]
    trainer = trainer_of(name)
    before = _distance(trainer.model, samples)
    for _ in range(5):
        samples = [on_policy(trainer.model, sample) for sample in samples]
        assert trainer.train(samples).skipped_reason is None
    assert _distance(trainer.model, samples) < before - 0.02


@pytest.mark.parametrize("name", PRESETS)
def test_what_carries_nothing_changes_nothing(name: str) -> None:
    trainer = trainer_of(name)
    before = weights(trainer.model)
    result = trainer.train([make_sample(1, reward=None), make_sample(2, reward=None)])
    assert result.skipped_reason == "masked_batch"
    assert [reason and reason[0] for reason in result.silent] == ["no_signal"] * 2
    assert same_weights(before, weights(trainer.model))


@pytest.mark.parametrize("name", PRESETS)
def test_the_gradient_is_the_same_however_the_batch_is_split(name: str) -> None:
    whole = gradient(name, 1000)
    for budget in (1, 31):
        split = gradient(name, budget)
        for expected, found in zip(whole, split, strict=True):
            assert float((found - expected).abs().max()) <= 1e-6 * max(1.0, float(expected.norm()))


@pytest.mark.parametrize("name", PRESETS)
def test_the_samples_that_carried_are_all_that_the_step_needs(name: str) -> None:
    """What a rebuild of the version trains on: the same bits."""
    first, again = trainer_of(name, tokens_per_forward=31), trainer_of(name, tokens_per_forward=31)
    samples = batch()
    result = first.train(samples)
    assert not all(result.carried)
    assert again.train([s for s, kept in zip(samples, result.carried, strict=True) if kept]).skipped_reason is None
    assert same_weights(weights(first.model), weights(again.model))


def gradient(name: str, budget: int) -> list[torch.Tensor]:
    trainer = trainer_of(name, tokens_per_forward=budget)
    seen: list[torch.Tensor] = []
    step = trainer.optimizer.step

    def spy(max_norm: float, norm: float) -> None:
        seen.extend(g.clone() for g in trainer.optimizer._gradients if g is not None)
        step(max_norm, norm)

    trainer.optimizer.step = spy  # type: ignore[method-assign]
    assert trainer.train(batch()).skipped_reason is None
    return seen


@torch.no_grad()
def _distance(model: Any, samples: list[TrainingSample]) -> float:
    total = 0.0
    for sample in samples:
        assert sample.hinted_prompt_ids is not None
        every = torch.arange(VOCABULARY).repeat(len(sample.response_ids), 1)
        (with_hint,) = plan_forwards([replace(sample, prompt_ids=sample.hinted_prompt_ids)], 1)
        (without,) = plan_forwards([sample], 1)
        teacher = response_scores(tiny_model(8), with_hint, at_ids_NK=every).at_ids
        policy = response_scores(model, without, at_ids_NK=every).at_ids
        assert teacher is not None
        assert policy is not None
        total += float((teacher.exp() * (teacher - policy)).sum(-1).mean())
    return total / len(samples)
