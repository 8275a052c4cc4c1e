"""What each rank of a test does. Every job takes its `RanksConfig` first; alone it is the comparison."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hindstream.cli.learner import app
from learner.config import LearnerConfig, RanksConfig
from learner.optimizer import MasterAdamW
from learner.options import step_options
from learner.others import make_others
from learner.policy import Policy
from learner.ranks import ranks_joined
from learner.samples import TrainingSample
from learner.service import run_learner
from learner.sharding import shard, whole_state
from learner.step import PolicyTrainer
from learner.together import follow, leading
from schemas.recipes import PRESETS, recipe_named
from tests.learner.learner_process import DIED
from tests.learner.test_presets import batch
from tests.learner.tiny import make_sample, tiny_model

NOWHERE = "127.0.0.1:1"
"""Where nobody listens."""

TOKENS = 31
"""Of a forward pass: the batch of `test_presets` takes three, so that two ranks have an empty one among them."""


def gradients(ranks: RanksConfig, names: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """For each preset: the whole gradient of its first step, its metrics, and the weights after it."""
    samples = batch()
    with ranks_joined(ranks, "cpu"):
        return {name: _step(name, samples) for name in names or list(PRESETS)}


def _step(name: str, samples: list[TrainingSample]) -> dict[str, Any]:
    options = replace(step_options(recipe_named(name), TOKENS), lr=2e-3)
    if options.critic is not None:  # fresh, it would value everything at 0 wherever it looks
        options = replace(options, critic=replace(options.critic, lr=0.05, warmup_batches=1))
    model = shard(tiny_model())
    optimizer = MasterAdamW(
        model, lr=options.lr, betas=options.betas, eps=options.eps, weight_decay=options.weight_decay
    )
    trainer = PolicyTrainer(model, options, make_others(model, optimizer, options, lambda: tiny_model(7)), optimizer)
    seen: list[dict[str, Tensor]] = []
    step = optimizer.step

    def spy(max_norm: float, norm: float) -> None:
        if not seen:
            for parameter, gradient in zip(optimizer.params, optimizer._gradients, strict=True):
                assert gradient is not None
                assert gradient.shape == parameter.shape
            seen.append(_whole(model, [g for g in optimizer._gradients if g is not None]))
        step(max_norm, norm)

    optimizer.step = spy  # type: ignore[method-assign]
    if options.critic is not None:
        trainer.train(samples)
        assert not seen
    result = trainer.train(samples)
    return {
        "skipped": result.skipped_reason,
        "silent": result.silent,
        "metrics": result.metrics,
        "gradient": seen[0] if seen else {},
        "weights": whole_state(model),
    }


def _whole(model: Any, values: list[Tensor]) -> dict[str, Tensor]:
    """Values for each parameter, put together from all ranks: the parameters hold them for the while."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    parts = [p._local_tensor if hasattr(p, "_local_tensor") else p for p in parameters]
    own = [part.detach().clone() for part in parts]
    with torch.no_grad():
        for part, value in zip(parts, values, strict=True):
            part.copy_(value)
        whole = {name: value.clone() for name, value in whole_state(model).items()}
        for part, value in zip(parts, own, strict=True):
            part.copy_(value)
    return whole


def learner(ranks: RanksConfig, config: dict[str, Any], dies: list[int] | None = None) -> None:
    """A learner whose rank `dies[0]` ends as by `kill -9` in its pass number `dies[1]` with gradients. Only the first
    rank is told where the log and the database are."""
    if ranks.rank:
        config |= {"bootstrap_servers": NOWHERE, "database_url": f"postgresql+psycopg://{NOWHERE}/x"}
    paths = {name: Path(config.pop(name)) for name in ("model_dir", "weights_dir")}
    if dies and ranks.rank == dies[0]:
        _die_in_pass(dies[1])
    run_learner(LearnerConfig(**config, **paths, ranks=ranks))


def command(ranks: RanksConfig, environment: dict[str, str], arguments: list[str], port: int) -> None:
    """`hindstream ARGUMENTS` with the variables that torchrun sets."""
    os.environ.update(
        environment,
        RANK=str(ranks.rank),
        LOCAL_RANK=str(ranks.local_rank),
        WORLD_SIZE=str(ranks.world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    app(arguments, standalone_mode=False)


def _die_in_pass(number: int) -> None:
    left, collecting = number, MasterAdamW.collecting

    def counted(self: MasterAdamW) -> Any:
        nonlocal left
        left -= 1
        if not left:
            os._exit(DIED)
        return collecting(self)

    MasterAdamW.collecting = counted  # type: ignore[method-assign]


def policy(ranks: RanksConfig, base: str, place: str, recipe: str, **story: Any) -> dict[str, Any]:
    """A policy under preset `recipe` that begins with the state at `load`, if any, takes a step for each of `seeds`,
    and writes itself and its state into `place`."""
    with ranks_joined(ranks, "cpu"):
        if ranks.rank:
            follow(Policy)
            return {}
        with leading():
            return _story(Path(base), Path(place), recipe, **story)


def _story(
    base: Path,
    place: Path,
    recipe: str,
    *,
    seeds: list[int],
    load: str | None = None,
    more: dict[str, Any] | None = None,
    then: dict[str, Any] | None = None,
    in_the_way: str | None = None,
    **how: Any,
) -> dict[str, Any]:
    """`more`: overrides of the recipe; `then`: those of another run's, which takes one more step. A directory of the
    name `in_the_way` keeps one part of the state from being written."""
    options = step_options(recipe_named(recipe, more or {}), TOKENS)
    policy = Policy(base, run="r", options=options, **{"dtype": "float32", "device": "cpu", **how})
    if load:
        policy.load_state(Path(load))
    for seed in seeds:
        assert policy.train(_samples(seed)).skipped_reason is None
    if then is not None:
        policy.change_run("s", step_options(recipe_named(recipe, then), TOKENS), 1)
        assert policy.train(_samples(99)).skipped_reason is None
    (place / "state").mkdir(parents=True)
    policy.write(place / "version")
    if policy.has_adapter:
        policy.write_adapter(place / "adapter")
    if in_the_way:
        (place / "state" / in_the_way).mkdir()
    refused = ""
    try:
        policy.save_state(place / "state" / "v000001.pt", version=1, manifest_sha256="m")
    except OSError as err:
        refused = str(err)
        assert policy.train(_samples(5)).skipped_reason is None
        policy.write(place / "version")
    return {"difference": policy.largest_difference(place / "version"), "refused": refused}


def _samples(seed: int) -> list[TrainingSample]:
    """A group of liked and disliked answers, each with a hint."""
    samples = [make_sample(seed + place, reward=(-1.0) ** place) for place in range(5)]
    return [
        replace(sample, group_id="g", staleness=0, hinted_prompt_ids=sample.prompt_ids.repeat(2)) for sample in samples
    ]
