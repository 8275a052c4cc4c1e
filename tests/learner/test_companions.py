"""Companions lend their weights to the policy's module and leave no trace; teachers follow their rules exactly."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import make_sample, same_weights, tiny_model, weights

from learner.companions import Companion, FrozenModel, Lent, Reference
from learner.optimizer import MasterAdamW
from learner.samples import TrainingSample
from learner.teachers import BestTeacher, EmaTeacher


def lent(model: Any) -> Lent:
    return Lent(model, MasterAdamW(model, lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0))


def move(one: Lent, amount: float) -> None:
    """Stands for a step: every master moves, and the model holds the rounded copies."""
    with torch.no_grad():
        for master in one.masters():
            master += amount
    one._optimizer._copy_to_model()


def shown(companion: Companion) -> dict[str, torch.Tensor]:
    with companion.model() as model:
        return weights(model)


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_reference_shows_the_first_weights_and_leaves_the_policys_as_they_were(dtype: torch.dtype) -> None:
    model = tiny_model(dtype=dtype)
    first = weights(model)
    policy = lent(model)
    reference = Reference(policy)
    move(policy, 0.01)
    moved = weights(model)
    assert same_weights(shown(reference), first)
    assert same_weights(weights(model), moved)
    assert not same_weights(moved, first)


def test_an_error_inside_gives_the_policy_its_weights_back() -> None:
    policy = lent(model := tiny_model())
    reference = Reference(policy)
    move(policy, 0.01)
    moved = weights(model)
    with pytest.raises(RuntimeError, match="inside"), reference.model():
        raise RuntimeError("inside")
    assert same_weights(weights(model), moved)


def test_only_trainable_parameters_are_held_so_adapters_alone_under_lora() -> None:
    model = tiny_model()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "q_proj" in name
    policy = lent(model)
    teacher = EmaTeacher(policy, 0.5)
    assert len(teacher.state_dict()["values"]) == 2
    move(policy, 1.0)
    differing = {name for name, value in shown(teacher).items() if not torch.equal(value, weights(model)[name])}
    assert differing == {name for name in weights(model) if "q_proj" in name}


def test_under_lora_the_reference_is_the_base_model() -> None:
    from peft import LoraConfig, inject_adapter_in_model

    base, model = tiny_model(), tiny_model()
    model = inject_adapter_in_model(LoraConfig(r=2, target_modules=["q_proj", "v_proj"]), model)
    policy = lent(model)
    reference = Reference(policy)
    move(policy, 0.05)
    ids = torch.arange(1, 9)[None]
    with torch.no_grad(), reference.model() as frozen:
        assert torch.equal(frozen(ids).logits, base(ids).logits)
    assert not torch.equal(model(ids).logits, base(ids).logits)
    assert sum(v.numel() for v in reference._values) < sum(p.numel() for p in base.parameters()) / 20


def test_a_frozen_model_of_its_own_is_itself() -> None:
    model = tiny_model(seed=3)
    assert same_weights(shown(FrozenModel(model)), weights(model))


def test_the_average_is_the_closed_form_of_its_rule() -> None:
    """After steps that make the weight w_1, w_2, ...: (1 - r)^n w_0 + sum r (1 - r)^(n - k) w_k."""
    policy = lent(tiny_model())
    teacher = EmaTeacher(policy, 0.05)
    start = policy.masters()[0].clone().double()
    for _ in range(3):
        move(policy, 0.2)
        teacher.after_step([])
    expected = start * 0.95**3 + sum(0.05 * 0.95 ** (3 - k) * (start + 0.2 * k) for k in (1, 2, 3))
    torch.testing.assert_close(teacher.state_dict()["values"][0].double(), expected, rtol=0, atol=1e-6)


def test_an_average_keeps_steps_that_bfloat16_would_round_away() -> None:
    model = tiny_model(dtype=torch.bfloat16)
    policy = lent(model)
    teacher = EmaTeacher(policy, 0.05)
    before = [value.clone() for value in teacher.state_dict()["values"]]
    for _ in range(10):
        move(policy, 1e-5)
        teacher.after_step([])
    moved = [float((value - old).max()) for value, old in zip(teacher.state_dict()["values"], before, strict=True)]
    assert all(0 < amount < 1e-4 for amount in moved)


def liked(number: int, reward: float | None, staleness: int | None) -> list[TrainingSample]:
    return [replace(make_sample(seed, reward=reward), staleness=staleness) for seed in range(number)]


def best_of(policy: Lent, *, candidates: int = 3, min_samples: int = 2) -> BestTeacher:
    return BestTeacher(policy, candidates=candidates, min_samples=min_samples)


def test_the_best_version_is_that_whose_own_samples_were_liked_most() -> None:
    policy = lent(model := tiny_model())
    teacher = best_of(policy, candidates=4)
    versions = [weights(model)]
    for samples, best, score in (
        ([*liked(1, -1.0, 0), *liked(1, 1.0, 0)], 0, 0.0),
        (liked(2, 1.0, 0), 1, 1.0),
        ([*liked(2, -1.0, 0), *liked(2, -1.0, 1)], 1, 0.0),  # version 1 falls to a tie with version 0: the newer
        (liked(6, -1.0, 2), 0, 0.0),  # and below it
    ):
        move(policy, 0.01)
        teacher.after_step(samples)
        versions.append(weights(model))
        assert same_weights(shown(teacher), versions[best])
        assert teacher.score() == score


def test_a_version_that_proves_better_teaches_and_stays_when_it_is_old() -> None:
    policy = lent(model := tiny_model())
    teacher = best_of(policy)
    first = weights(model)
    move(policy, 0.01)
    teacher.after_step(liked(2, 0.0, 0))
    assert (teacher.score(), same_weights(shown(teacher), first)) == (0.0, True)
    second = weights(model)
    move(policy, 0.01)
    teacher.after_step(liked(2, 1.0, 0))
    for _ in range(5):
        move(policy, 0.01)
        teacher.after_step(liked(2, -1.0, 0))
    assert same_weights(shown(teacher), second)
    assert teacher.score() == 1.0
    assert len(teacher.state_dict()["versions"]) == 4  # three candidates and the best


@pytest.mark.parametrize(
    ("samples", "what"),
    [
        (liked(1, 1.0, 0), "too few"),
        (liked(5, None, 0), "no reward"),
        (liked(5, float("nan"), 0), "NaN"),
        (liked(5, 1.0, None), "unknown version"),
        (liked(5, 1.0, 7), "a version that is kept no more"),
        (liked(5, 1.0, -1), "a version that is not there yet"),
    ],
)
def test_what_says_nothing_about_a_version_gives_it_no_score(samples: list[TrainingSample], what: str) -> None:
    policy = lent(model := tiny_model())
    teacher = best_of(policy)
    first = weights(model)
    move(policy, 0.01)
    teacher.after_step(samples)
    assert teacher.score() is None, what
    assert same_weights(shown(teacher), first)


@pytest.mark.parametrize("make", [lambda policy: EmaTeacher(policy, 0.05), best_of])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_restored_teacher_goes_on_bit_for_bit(make: Callable[[Lent], Companion], dtype: torch.dtype) -> None:
    def train(policy: Lent, teacher: Companion, steps: range) -> None:
        for step in steps:
            move(policy, 0.003 * (step + 1))
            teacher.after_step([*liked(2, 1.0 if step == 1 else 0.0, 0), *liked(3, -1.0 if step == 4 else 1.0, 1)])

    whole_policy = lent(tiny_model(dtype=dtype))
    whole = make(whole_policy)
    train(whole_policy, whole, range(6))

    first_policy = lent(tiny_model(dtype=dtype))
    first = make(first_policy)
    train(first_policy, first, range(3))
    saved = through_a_file({"optimizer": first_policy._optimizer.state_dict(), "teacher": first.state_dict()})
    second_policy = lent(tiny_model(dtype=dtype))
    second_policy._optimizer.load_state_dict(saved["optimizer"])
    second = make(second_policy)
    second.load_state_dict(saved["teacher"])
    train(second_policy, second, range(3, 6))
    assert same_weights(shown(whole), shown(second))


def test_numbers_that_cannot_be_are_refused() -> None:
    policy = lent(tiny_model())
    for rate in (0.0, -0.1, 1.5):
        with pytest.raises(ValueError, match="rate"):
            EmaTeacher(policy, rate)
    with pytest.raises(ValueError, match="candidates"):
        BestTeacher(policy, candidates=0, min_samples=1)
