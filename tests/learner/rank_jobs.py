"""What each rank of a test does. Every job takes its `RanksConfig` first; alone it is the comparison."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from learner.config import RanksConfig
from learner.optimizer import MasterAdamW
from learner.options import step_options
from learner.others import make_others
from learner.ranks import ranks_joined
from learner.samples import TrainingSample
from learner.sharding import shard, whole_state
from learner.step import PolicyTrainer
from schemas.recipes import PRESETS, recipe_named
from tests.learner.test_presets import batch
from tests.learner.tiny import tiny_model

TOKENS = 31
"""Of a forward pass: the batch of `test_presets` takes three, so that two ranks have an empty one among them."""


def gradients(ranks: RanksConfig, names: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """For each preset: the whole gradient of its first step, its metrics, and the weights after it."""
    samples = batch()
    with ranks_joined(ranks, "cpu"):
        return {name: _step(name, samples) for name in names or list(PRESETS)}


def _step(name: str, samples: list[TrainingSample]) -> dict[str, Any]:
    options = replace(step_options(recipe_named(name), TOKENS), lr=2e-3)
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
