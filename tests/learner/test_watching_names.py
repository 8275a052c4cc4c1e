"""Every name that a step logs is defined, under each recipe; and a definition that no recipe uses is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny import make_sample, on_policy, tiny_model

from learner.batches import Loaded
from learner.critic import CriticOptions
from learner.metrics import Metrics
from learner.optimizer import MasterAdamW
from learner.options import step_options
from learner.others import make_others
from learner.samples import TrainingSample
from learner.step import PolicyTrainer
from learner.step_options import StepOptions
from learner.train_batch import train_batch
from learner.watching.definitions import DEFINITIONS
from schemas.recipes import PRESETS, recipe_named

OF_THE_ROW = {"seconds", "tokens_per_second", "samples_trained", "samples_dropped"}
"""Columns of training_steps of their own, not in its metrics."""


def samples() -> list[TrainingSample]:
    """Two candidates of a group, liked and disliked, with everything that a recipe may ask for."""
    found = []
    for seed, reward in ((1, 1.0), (2, -1.0)):
        one = on_policy(tiny_model(), make_sample(seed, reward=reward, teacher=True))
        length = len(one.response_ids)
        ids = np.stack([one.response_ids] + [(one.response_ids + k) % 61 for k in range(1, 8)], 1).astype(np.int32)
        scores = np.log(np.full((length, 8), 0.1, np.float32))
        found.append(
            replace(
                one, group_id="g", pair=("g", reward > 0), hinted_prompt_ids=np.array([5, 6, 7], np.int32),
                teacher_topk_ids=ids, teacher_topk_logprobs=scores,
            )
        )  # fmt: skip
    return found


def logged(options: StepOptions) -> Metrics:
    model = tiny_model()
    optimizer = MasterAdamW(
        model, lr=options.lr, betas=options.betas, eps=options.eps, weight_decay=options.weight_decay
    )
    trainer = PolicyTrainer(model, options, make_others(model, optimizer, options, tiny_model), optimizer)
    loaded = [Loaded(sample, "policy", 3) for sample in samples()]
    done = train_batch(trainer, loaded, policy="policy", version=4, bound=4)
    assert done.skipped_reason is None
    assert done.metrics["reward_mean"] == (1.0 if options.advantage.kind == "liked" else 0.0)
    assert done.metrics["staleness_mean"] == 1.0
    return done.metrics


@pytest.fixture(scope="module")
def metrics() -> dict[str, Metrics]:
    """By preset, and what no preset switches on."""
    found = {name: logged(step_options(recipe_named(name), 1000)) for name in PRESETS}
    ppo = step_options(recipe_named("ppo"), 1000)
    found["own critic"] = logged(replace(ppo, critic=CriticOptions(kind="model"), tis_cap=2.0, kl_coefficient=0.1))
    found["summed"] = logged(replace(step_options(recipe_named("combine"), 1000), normaliser="batch"))
    return found


def test_every_name_is_defined(metrics: dict[str, Metrics]) -> None:
    undefined = {name: sorted(named) for name, logs in metrics.items() if (named := logs.keys() - DEFINITIONS.keys())}
    assert undefined == {}, "give each a line in learner/watching/definitions.py"
    assert not OF_THE_ROW & {name for logs in metrics.values() for name in logs}


def test_every_definition_is_used(metrics: dict[str, Metrics]) -> None:
    used = {name for logs in metrics.values() for name in logs} | OF_THE_ROW
    assert DEFINITIONS.keys() - used == set()
