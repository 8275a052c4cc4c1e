"""From samples to what a step needs: the objective with everything measured, and its forward passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from learner.collate import Forward, plan_forwards
from learner.measuring import Others, measure
from learner.objective import Objective, build_objective
from learner.ranks import share
from learner.samples import TrainingSample
from learner.silence import Silence, why_silent
from learner.step_options import StepOptions


@dataclass(frozen=True, eq=False)
class Prepared:
    """`objective`: of the whole micro-batch; `forwards`: this rank's share. `silent`: for each sample why no token of
    it carries a gradient, None where one does. `rejected`: tokens that the recipe's mismatch bounds masked, those of
    silenced samples too."""

    objective: Objective
    forwards: list[Forward]
    silent: list[Silence | None]
    rejected: int


def prepare(model: Any, others: Others, samples: Sequence[TrainingSample], options: StepOptions) -> Prepared:
    """Measure what `options` ask for, and build the objective.

    A sample that measuring silences is taken out, and everything is measured again without it. So the samples that
    carry a gradient are all that is needed to take the same step again, bit for bit.

    Raises:
        InvalidSample: a sample must not be trained.
    """
    use = [True] * len(samples)
    silent: list[Silence | None] = [None] * len(samples)
    rejected_N = torch.zeros(sum(len(sample.response_ids) for sample in samples), dtype=torch.bool)

    def told(objective: Objective) -> list[Silence | None]:
        reasons = why_silent(samples, objective, options)
        return [before or reason for before, reason in zip(silent, reasons, strict=True)]

    while True:
        objective = build_objective(samples, options, use=use)
        silent, use = told(objective), objective.carried()
        forwards = share(plan_forwards(samples, options.tokens_per_forward, use))
        if not any(use) or not options.needs_measuring:
            return Prepared(objective, forwards, silent, int(rejected_N.sum()))
        measured = measure(model, others, samples, forwards, objective, options)
        objective = build_objective(samples, options, measured, use)
        rejected_N |= objective.rejected
        silent, before, use = told(objective), use, objective.carried()
        if use == before or not any(use):
            return Prepared(objective, forwards, silent, int(rejected_N.sum()))
