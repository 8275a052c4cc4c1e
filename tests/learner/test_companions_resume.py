"""Whole trainers with a critic or a teacher of their own: resumed bit for bit; no trace of skipped batches; warm-up."""

from __future__ import annotations

import io
import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import make_sample, on_policy, same_weights, tiny_model, weights

from learner.critic import CriticOptions
from learner.optimizer import MasterAdamW
from learner.options import step_options
from learner.others import make_others
from learner.samples import TrainingSample
from learner.step import PolicyTrainer
from learner.step_options import StepOptions, TeacherOptions
from schemas.recipes import recipe_named

PPO = replace(step_options(recipe_named("ppo"), 30), lr=1e-3)
SDPO = replace(step_options(recipe_named("sdpo"), 30), lr=1e-3)
BEST = TeacherOptions(weights="best", best_min_samples=2, candidates=2)
CASES = {
    "critic's head": PPO,
    "critic's model": replace(PPO, critic=CriticOptions(kind="model", steps=2)),
    "critic that warms up": replace(PPO, critic=CriticOptions(warmup_batches=4)),
    "EMA": SDPO,
    "past best": replace(SDPO, teacher=BEST),
}


def trainer(options: StepOptions, dtype: torch.dtype = torch.float32) -> PolicyTrainer:
    model = tiny_model(dtype=dtype)
    optimizer = MasterAdamW(
        model, lr=options.lr, betas=options.betas, eps=options.eps, weight_decay=options.weight_decay
    )
    others = make_others(model, optimizer, options, lambda: tiny_model(dtype=dtype))
    return PolicyTrainer(model, options, others, optimizer)


def batch(number: int) -> list[TrainingSample]:
    """Liked and disliked, all hinted, made by the version before the newest."""
    rewards = (1.0, -1.0, 1.0 if number % 2 else -1.0)
    return [
        replace(
            make_sample(10 * number + seed, prompt=3 + seed, reward=reward, teacher=True),
            hinted_prompt_ids=np.array([5, 6, 7 + seed], np.int32),
            staleness=min(number, 1),
        )
        for seed, reward in enumerate(rewards)
    ]


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_trainer_goes_on_bit_for_bit(case: str, dtype: torch.dtype) -> None:
    whole, first = trainer(CASES[case], dtype), trainer(CASES[case], dtype)
    logs = [whole.train(batch(number)).metrics for number in range(6)]
    for number in range(3):
        first.train(batch(number))
    second = trainer(CASES[case], dtype)
    second.load_state_dict(through_a_file(first.state_dict()))
    assert [second.train(batch(number)).metrics for number in range(3, 6)] == logs[3:]
    assert same_weights(weights(whole.model), weights(second.model))
    assert not same_weights(weights(whole.model), weights(first.model))


@pytest.mark.parametrize("case", CASES)
def test_a_skipped_batch_leaves_no_trace_in_critic_or_teacher(case: str) -> None:
    one, witness = trainer(CASES[case]), trainer(CASES[case])
    for each in (one, witness):
        each.train(batch(0))
    handle = one.model.model.norm.register_forward_hook(lambda _module, _inputs, output: output * math.inf)
    skipped = one.train(batch(1))
    handle.remove()
    if not (one.others.critic and one.others.critic.warming):  # then the critic alone skips its step, and counts
        assert skipped.skipped_reason is not None
        assert [one.train(batch(2)).metrics, one.train(batch(3)).metrics] == [
            witness.train(batch(2)).metrics,
            witness.train(batch(3)).metrics,
        ]
    assert same_weights(weights(one.model), weights(witness.model))


def test_while_it_warms_up_only_the_critic_moves_and_the_step_counts() -> None:
    one = trainer(replace(PPO, critic=CriticOptions(warmup_batches=2, lr=0.05)))
    before = weights(one.model)
    losses = []
    for _ in range(2):
        result = one.train(batch(0))
        assert result.skipped_reason is None
        assert any(result.carried)
        losses.append(result.metrics["value_loss"])
    assert same_weights(before, weights(one.model))
    assert losses[1] < losses[0]
    one.train(batch(0))
    assert not same_weights(before, weights(one.model))


def test_a_critic_learns_which_prompt_is_which_and_is_surprised_less() -> None:
    """One answer is liked and one is not."""
    one = trainer(replace(PPO, lr=1e-6, critic=CriticOptions(kind="model", lr=3e-3, clip=None)))
    samples = [
        on_policy(one.model, make_sample(seed, prompt=4 + seed, reward=reward))
        for seed, reward in ((1, 1.0), (2, -1.0))
    ]
    logs = [one.train(samples).metrics for _ in range(40)]
    assert logs[0]["explained_variance"] == pytest.approx(0.0, abs=1e-6)
    assert logs[-1]["explained_variance"] is not None
    assert logs[-1]["explained_variance"] > 0.9
    assert logs[-1]["value_loss"] < 0.1 * logs[0]["value_loss"]  # type: ignore[operator]


def test_sdpo_moves_the_policy_towards_its_own_past_under_the_hint() -> None:
    """The divergence to a teacher that hardly moves falls step by step."""
    one = trainer(replace(SDPO, lr=3e-3, teacher=TeacherOptions(weights="ema", ema_rate=0.001)))
    losses = [one.train(batch(0)).metrics["opd_loss"] for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]  # type: ignore[operator]


def test_what_the_page_shows_are_the_defaults_and_can_be_set() -> None:
    page = (Path(__file__).parents[2] / "docs" / "critics-and-teachers.md").read_text()
    shown = tomllib.loads("\n".join(line[4:] for line in page.splitlines() if line.startswith("    ")))
    assert recipe_named("ppo", {"critic": shown["critic"]}).digest() == recipe_named("ppo").digest()
    assert recipe_named("sdpo", {"teacher": shown["teacher"]}).digest() == recipe_named("sdpo").digest()
