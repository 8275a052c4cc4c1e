"""A step on a tiny Llama: the same gradient however it is split, no step on nothing, exact repeats."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import make_sample, mixed_samples, on_policy, same_weights, tiny_model, weights

from learner.collate import plan_forwards
from learner.companions import FrozenModel
from learner.logprobs import response_log_probs
from learner.measuring import Others
from learner.samples import InvalidSample, TrainingSample
from learner.step import PolicyTrainer
from learner.step_options import StepOptions

LR = StepOptions(lr=1e-3, tokens_per_forward=1000)


def gradient(samples: list[TrainingSample], options: StepOptions, reference: Any = None) -> dict[str, torch.Tensor]:
    """The loss, and each parameter's gradient as it stands right before the optimizer steps."""
    trainer = PolicyTrainer(tiny_model(), options, reference and Others(reference=FrozenModel(reference)))
    seen: list[list[torch.Tensor]] = []
    step = trainer.optimizer.step

    def spy(max_norm: float, norm: float) -> None:
        seen.append([g.clone() if g is not None else torch.zeros(()) for g in trainer.optimizer._gradients])
        step(max_norm, norm)

    trainer.optimizer.step = spy  # type: ignore[method-assign]
    result = trainer.train(samples)
    assert result.skipped_reason is None
    names = [name for name, _ in trainer.model.named_parameters()]
    return dict(zip(names, seen[0], strict=True)) | {"loss": torch.tensor(result.metrics["loss"])}


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "sequence_sum", "constant"])
@pytest.mark.parametrize("normaliser", ["component", "batch"])
def test_the_gradient_is_the_same_however_the_batch_is_split(aggregation: Any, normaliser: Any) -> None:
    options = replace(
        LR, aggregation=aggregation, aggregation_constant=8.0, normaliser=normaliser,
        entropy_coefficient=0.05, kl_coefficient=0.1, tis_cap=1.5,
    )  # fmt: skip
    reference = tiny_model(seed=7)
    whole = gradient(mixed_samples(), options, reference)
    for budget in (1, 20, 34):
        split = gradient(mixed_samples(), replace(options, tokens_per_forward=budget), reference)
        for name, expected in whole.items():
            difference = float((split[name] - expected).abs().max())
            assert difference <= 1e-6 * max(1.0, float(expected.norm())), name


def test_the_gradient_is_that_of_the_formula_written_out() -> None:
    """`combine` against whole logits, one sample at a time, float64 sums."""
    samples, options = mixed_samples(), replace(LR, w_rl=0.7, w_opd=1.3, tis_cap=None)
    ours = gradient(samples, options)
    model = tiny_model()
    tokens = {"rl": 7 + 2 + 1, "opd": 2 + 11}
    loss = torch.zeros(())
    for sample in samples:
        ids = torch.tensor([*sample.prompt_ids.tolist(), *sample.response_ids.tolist()])
        logits = model(ids[None]).logits[0]
        first = len(sample.prompt_ids) - 1
        new = torch.log_softmax(logits, -1)[first:-1].gather(-1, ids[first + 1 :, None])[:, 0]
        old = torch.from_numpy(sample.response_logprobs)
        ratio = (new - old).exp()

        def surrogate(advantage: torch.Tensor | float, ratio: torch.Tensor = ratio) -> torch.Tensor:
            return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage).sum()

        if sample.reward:
            loss = loss + 0.7 * surrogate(sample.reward) / tokens["rl"]
        if sample.teacher_logprobs is not None:
            loss = loss + 1.3 * surrogate(torch.from_numpy(sample.teacher_logprobs) - old) / tokens["opd"]
    loss.backward()
    torch.testing.assert_close(ours["loss"], loss.detach(), rtol=1e-5, atol=1e-6)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reward", [1.0, -1.0])
def test_a_reward_moves_the_answers_probability_its_way(reward: float) -> None:
    model = tiny_model()
    sample = on_policy(model, make_sample(1, reward=reward))
    PolicyTrainer(model, replace(LR, w_opd=0.0)).train([sample])
    moved = on_policy(model, sample).response_logprobs.sum() - sample.response_logprobs.sum()
    assert moved * reward > 0.01


def test_a_teacher_pulls_towards_itself() -> None:
    """Many steps of `opd` on one token bring the student's log-prob to the teacher's, and no further."""
    model = tiny_model()
    trainer = PolicyTrainer(model, replace(LR, w_rl=0.0, lr=3e-3))
    sample = make_sample(1, response=1, reward=None, teacher=True)
    sample = replace(sample, teacher_logprobs=np.array([-2.0], np.float32))
    for _ in range(60):
        sample = on_policy(model, sample)
        trainer.train([sample])
    assert float(on_policy(model, sample).response_logprobs[0]) == pytest.approx(-2.0, abs=0.15)


@pytest.mark.parametrize(
    "samples",
    [
        [make_sample(1, reward=0.0), make_sample(2, reward=None)],
        [make_sample(1, reward=math.nan)],
        [make_sample(1, reward=1.0, truncated=True)],
    ],
)
def test_a_fully_masked_batch_makes_no_step(samples: list[TrainingSample]) -> None:
    model = tiny_model()
    before = weights(model)
    result = PolicyTrainer(model, replace(LR, train_truncated=False)).train(samples)
    assert result.skipped_reason == "masked_batch"
    assert result.metrics["tokens"] == 0
    assert same_weights(before, weights(model))


def test_one_nan_reward_leaves_the_rest_finite() -> None:
    bad, good = make_sample(1, reward=math.nan), make_sample(2, reward=1.0)
    together, alone = PolicyTrainer(tiny_model(), LR), PolicyTrainer(tiny_model(), LR)
    result, expected = together.train([bad, good]), alone.train([good])
    assert result.skipped_reason is None
    assert result.carried == [False, True]
    assert result.metrics["gradient_norm"] == expected.metrics["gradient_norm"]
    assert same_weights(weights(together.model), weights(alone.model))


@pytest.mark.parametrize("where", ["activations", "gradient"])
def test_a_batch_that_is_not_finite_makes_no_step_and_leaves_no_trace(where: str) -> None:
    """Neither in the parameters nor in AdamW's moments: the next batch trains as if it had not been."""
    model = tiny_model()
    trainer, witness = PolicyTrainer(model, LR), PolicyTrainer(tiny_model(), LR)
    good = [make_sample(1)]
    for one in (trainer, witness):
        one.train(good)
    before = weights(model)

    if where == "activations":
        handle = model.model.norm.register_forward_hook(lambda _module, _inputs, output: output * math.inf)
    else:
        handle = model.model.layers[0].mlp.down_proj.weight.register_hook(lambda grad: grad * math.nan)
    result = trainer.train(mixed_samples())
    handle.remove()
    assert result.skipped_reason == "non_finite_batch"
    assert result.metrics["gradient_norm"] is None
    assert all(value is None or math.isfinite(value) for value in result.metrics.values())
    assert same_weights(before, weights(model))

    for one in (trainer, witness):
        one.train(good)
    assert same_weights(weights(model), weights(witness.model))


def test_an_infinite_advantage_makes_no_step() -> None:
    model = tiny_model()
    before = weights(model)
    teacher = np.full(5, 3e38, np.float32)
    sample = replace(make_sample(1, reward=None), teacher_logprobs=teacher, response_logprobs=-teacher)
    assert PolicyTrainer(model, LR).train([sample, make_sample(2)]).skipped_reason == "non_finite_batch"
    assert same_weights(before, weights(model))


@pytest.mark.parametrize("tis_cap", [None, 2.0])
def test_a_behaviour_of_minus_9999_is_survived(tis_cap: float | None) -> None:
    """vLLM's JSON writes -inf so. The ratio is held at its bound, the token gives no gradient beyond it."""
    sample = make_sample(1)
    sample.response_logprobs[2] = -9999.0
    result = PolicyTrainer(tiny_model(), replace(LR, tis_cap=tis_cap)).train([sample])
    assert result.skipped_reason is None
    assert all(value is None or math.isfinite(value) for value in result.metrics.values())


def test_an_invalid_sample_is_refused_before_anything_changes() -> None:
    model = tiny_model()
    before = weights(model)
    short = replace(make_sample(1), response_logprobs=np.zeros(2, np.float32))
    with pytest.raises(InvalidSample, match="logprob_length_mismatch"):
        PolicyTrainer(model, LR).train([make_sample(2), short])
    assert same_weights(before, weights(model))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_batches_make_the_same_bits(dtype: torch.dtype) -> None:
    models = [tiny_model(dtype=dtype) for _ in range(2)]
    for model in models:
        trainer = PolicyTrainer(model, replace(LR, steps=2, tokens_per_forward=25))
        for seed in range(3):
            trainer.train([*mixed_samples(), make_sample(10 + seed)])
    assert same_weights(weights(models[0]), weights(models[1]))


def test_a_second_step_is_clipped_against_the_policy_before_the_first() -> None:
    model = tiny_model()
    sample = on_policy(model, make_sample(1, reward=1.0))
    options = replace(LR, lr=0.02, w_opd=0.0)
    one = PolicyTrainer(tiny_model(), options).train([sample])
    assert one.metrics["clip_fraction_high"] == 0.0
    several = PolicyTrainer(model, replace(options, steps=3)).train([sample])
    clipped = several.metrics["clip_fraction_high"]
    assert clipped is not None
    assert clipped > 0.5


def test_truncation_bounds_what_a_stale_token_weighs() -> None:
    """Behaviour far below the trainer: exp(gap) is 20 and more, and the weight is the cap."""
    stale = make_sample(1, behaviour=-30.0)
    capped = [gradient([stale], replace(LR, tis_cap=cap, max_grad_norm=1e9)) for cap in (1.0, 2.0)]
    for name, value in capped[0].items():
        torch.testing.assert_close(2 * value, capped[1][name], rtol=1e-5, atol=1e-7)


def test_a_kl_term_needs_its_reference_and_pulls_back_to_it() -> None:
    with pytest.raises(ValueError, match="reference"):
        PolicyTrainer(tiny_model(), replace(LR, kl_coefficient=0.1))
    model, base = tiny_model(), tiny_model()
    for parameter in model.parameters():
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
    sample = on_policy(model, make_sample(1, response=20, reward=1.0))
    others = Others(reference=FrozenModel(base))
    trainer = PolicyTrainer(model, replace(LR, w_opd=0.0, w_rl=1e-6, kl_coefficient=1.0, kl_estimator="k2"), others)

    def distance() -> float:
        gap = on_policy(model, sample).response_logprobs - on_policy(base, sample).response_logprobs
        return float(np.square(gap).mean())

    before = distance()
    for _ in range(10):
        trainer.train([sample])
    assert distance() < before / 2


def test_an_entropy_bonus_raises_entropy() -> None:
    model = tiny_model()
    sample = make_sample(1, response=10, reward=1.0)
    trainer = PolicyTrainer(model, replace(LR, w_rl=1e-6, w_opd=0.0, entropy_coefficient=1.0))
    (forward,) = plan_forwards([sample], 1)
    before = float(response_log_probs(model, forward)[1].detach().mean())
    for _ in range(5):
        trainer.train([sample])
    assert float(response_log_probs(model, forward)[1].detach().mean()) > before + 0.05
