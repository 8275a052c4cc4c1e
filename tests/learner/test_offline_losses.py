"""Recipes for logs alone: the known direction, and the gradient of the formula written out, without any log-prob of
whoever answered."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_presets import log_prob, options_of, others_of, trainer_of
from tiny import make_sample, same_weights, tiny_model, weights
from torch.nn.functional import logsigmoid

from learner.advantages.preference import preference_advantage
from learner.collate import plan_forwards
from learner.logprobs import response_scores
from learner.losses.dpo import dpo, response_gain
from learner.measuring import Others
from learner.samples import TrainingSample
from learner.step import PolicyTrainer

BETA = 0.1


def text(seed: int, reward: float | None = None, **more: Any) -> TrainingSample:
    """A turn of which only the text is known."""
    return replace(make_sample(seed, reward=reward, **more), response_logprobs=None)


def pair(name: str, seed: int) -> list[TrainingSample]:
    """Two answers to one prompt, the better first."""
    chosen, rejected = text(seed, response=4), text(seed + 100, response=6)
    return [
        replace(chosen, pair=(name, True)),
        replace(rejected, prompt_ids=chosen.prompt_ids, pair=(name, False)),
    ]


def gains(trainer: PolicyTrainer, samples: list[TrainingSample]) -> list[float]:
    """Of each sample how far its log-prob is now above the untrained model's."""
    return [log_prob(trainer.model, sample) - log_prob(tiny_model(), sample) for sample in samples]


def test_sft_raises_what_was_liked_and_looks_at_nothing_else() -> None:
    liked, disliked, neutral = text(1, 1.0), text(2, -1.0), text(3, 0.0)
    trainer, alone = trainer_of("sft"), trainer_of("sft")
    result = trainer.train([liked, disliked, neutral])
    assert [reason and reason[0] for reason in result.silent] == [None, "no_signal", "no_signal"]
    assert gains(trainer, [liked])[0] > 0.01
    alone.train([liked])
    assert same_weights(weights(trainer.model), weights(alone.model))


def test_sft_of_every_turn_looks_at_no_reward() -> None:
    options = options_of("sft")
    trainer = PolicyTrainer(tiny_model(), replace(options, advantage=replace(options.advantage, kind="every")))
    samples = [text(1, -1.0), text(2, None)]
    assert trainer.train(samples).carried == [True, True]
    assert min(gains(trainer, samples)) > 0.01


def test_sft_reports_a_loss_and_no_ratio_to_anybody() -> None:
    trainer, samples = trainer_of("sft"), [text(1, 1.0, response=3), text(2, 1.0, response=9)]
    expected = -sum(log_prob(trainer.model, sample) for sample in samples) / 12
    metrics = trainer.train(samples).metrics
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
    assert not {"ratio_p50", "logprob_gap_mean", "kl_k1", "kl_k3"} & metrics.keys()
    assert metrics["entropy"]


@pytest.mark.parametrize("budget", [1, 1000])
def test_dpo_takes_the_gradient_of_its_formula_however_the_batch_is_split(budget: int) -> None:
    """Two pairs and a correction against a reference that is another model; autograd through -log sigmoid itself."""
    written = text(8, response=3).response_ids
    corrected = replace(text(7, response=5), pair=("c", False), correction_ids=written)
    samples = [*pair("a", 1), corrected, *pair("b", 2)]
    trainer = trainer_of("dpo", reference=7, tokens_per_forward=budget)
    seen: list[torch.Tensor] = []
    step = trainer.optimizer.step

    def spy(max_norm: float, norm: float) -> None:
        seen.extend(g.clone() for g in trainer.optimizer._gradients if g is not None)
        step(max_norm, norm)

    trainer.optimizer.step = spy  # type: ignore[method-assign]
    result = trainer.train(samples)
    assert result.carried == [True] * 5

    correction = replace(corrected, response_ids=written)
    ordered = [(samples[0], samples[1]), (correction, corrected), (samples[3], samples[4])]
    model, reference = tiny_model(), tiny_model(7)

    def gain(sample: TrainingSample) -> torch.Tensor:
        (forward,) = plan_forwards([sample], 1)
        with torch.no_grad():
            before = response_scores(reference, forward).chosen.sum()
        return response_scores(model, forward).chosen.sum() - before

    chosen = torch.stack([gain(better) for better, _ in ordered])
    rejected = torch.stack([gain(worse) for _, worse in ordered])
    margin = BETA * (chosen - rejected)
    loss = -logsigmoid(margin).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    loss, margin = loss.detach(), margin.detach()
    expected = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    for found, grad in zip(seen, expected, strict=True):
        assert float((found - grad).abs().max()) <= 1e-5 * max(1.0, float(grad.norm()))
    assert result.metrics["pair_loss"] == pytest.approx(float(loss), rel=1e-4)
    assert result.metrics["loss"] == pytest.approx(float(loss), rel=1e-4)
    assert result.metrics["pair_margin"] == pytest.approx(float(margin.mean()), abs=1e-4)
    assert result.metrics["pair_accuracy"] == pytest.approx(float((margin > 0).double().mean()))
    assert result.metrics["pairs"] == 3


def test_dpo_prefers_the_better_answer_and_begins_at_log_2() -> None:
    trainer, samples = trainer_of("dpo", reference=0), pair("a", 1)
    first = trainer.train(samples)
    assert first.metrics["pair_loss"] == pytest.approx(math.log(2))
    assert first.metrics["pair_accuracy"] == 0
    better, worse = gains(trainer, samples)
    assert better > 0.01
    assert worse < -0.01
    assert trainer.train(samples).metrics["pair_accuracy"] == 1


def test_an_answer_whose_other_is_not_there_is_not_trained() -> None:
    trainer = trainer_of("dpo")
    alone, whole = pair("a", 1)[0], pair("b", 2)
    result = trainer.train([alone, *whole, text(9, 1.0)])
    assert [reason and reason[0] for reason in result.silent] == ["uninformative", None, None, "no_signal"]


def test_a_cut_off_answer_takes_its_pair_with_it_unless_a_person_corrected_it() -> None:
    better, worse = pair("a", 1)
    corrected = replace(text(7), pair=("c", False), correction_ids=text(8, response=3).response_ids, truncated=True)
    result = trainer_of("dpo").train([better, replace(worse, truncated=True), corrected])
    assert [reason and reason[0] for reason in result.silent] == ["uninformative", "no_signal", None]


def test_the_weight_of_a_pair_is_the_slope_of_its_loss() -> None:
    own, reference = torch.randn(10), torch.randn(10)
    owners, mask = torch.tensor([0] * 4 + [1] * 6), torch.ones(10, dtype=torch.bool)
    own.requires_grad_()
    gain = response_gain(own, reference, mask, owners, 2)
    dpo(gain[:1], gain[1:], beta=0.3).loss.sum().backward()  # type: ignore[no-untyped-call]
    found = preference_advantage([("p", True), ("p", False)], mask, owners, own.detach(), reference, beta=0.3)
    assert own.grad is not None
    torch.testing.assert_close(-found.advantage / 2, own.grad)


def test_kd_moves_to_the_teachers_distribution_over_recorded_answers() -> None:
    """KL(teacher || policy) over the whole vocabulary falls, where the teacher told its 16 likeliest entries alone."""
    teacher, samples = tiny_model(8), [text(seed) for seed in range(3)]
    taught = []
    for sample in samples:
        (forward,) = plan_forwards([sample], 1)
        with torch.no_grad():
            scores = response_scores(teacher, forward, top_k=16)
        assert scores.top_ids is not None
        assert scores.top_logprobs is not None
        taught.append(
            replace(
                sample,
                teacher_logprobs=scores.chosen.numpy(),
                teacher_topk_ids=scores.top_ids.numpy().astype("int32"),
                teacher_topk_logprobs=scores.top_logprobs.numpy(),
            )
        )
    options = options_of("kd")
    options = replace(options, distillation=replace(options.distillation, k=16))
    model = tiny_model()
    trainer = PolicyTrainer(model, options, others_of(model, options, 0))
    before = _forward_kl(teacher, trainer.model, taught)
    result, *_ = [trainer.train(taught) for _ in range(5)]
    assert result.carried == [True] * 3
    assert result.metrics["opd_tokens"] == sum(len(sample.response_ids) for sample in samples)
    assert result.metrics["opd_advantage_mean"] is None
    assert _forward_kl(teacher, trainer.model, taught) < before - 0.01


def test_a_recipe_of_pairs_is_refused_without_a_reference() -> None:
    with pytest.raises(ValueError, match="reference"):
        PolicyTrainer(tiny_model(), options_of("dpo"), Others())


@torch.no_grad()
def _forward_kl(teacher: Any, model: Any, samples: list[TrainingSample]) -> float:
    total = 0.0
    for sample in samples:
        (forward,) = plan_forwards([sample], 1)
        every = torch.arange(model.lm_head.weight.shape[0]).repeat(len(sample.response_ids), 1)
        theirs = response_scores(teacher, forward, at_ids_NK=every).at_ids
        own = response_scores(model, forward, at_ids_NK=every).at_ids
        assert theirs is not None
        assert own is not None
        total += float((theirs.exp() * (theirs - own)).sum(-1).mean())
    return total / len(samples)
