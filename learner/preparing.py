"""From samples to what a step needs: the objective with everything measured, and its forward passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from learner.collate import Forward, plan_forwards
from learner.measuring import Others, measure
from learner.metrics import log_prob_gap
from learner.objective import Objective, build_objective
from learner.samples import TrainingSample
from learner.silence import Silence, why_silent
from learner.step_options import StepOptions


@dataclass(frozen=True, eq=False)
class Prepared:
    """`silent`: for each sample why no token of it carries a gradient, None where one does. `gap`: mean
    |engine - trainer| over the tokens that could carry one, nats; None where it was not measured yet."""

    objective: Objective
    forwards: list[Forward]
    silent: list[Silence | None]
    gap: float | None


def prepare(model: Any, others: Others, samples: Sequence[TrainingSample], options: StepOptions) -> Prepared:
    """Measure what `options` ask for, and build the objective.

    A sample that measuring silences is taken out, and everything is measured again without it. So the samples that
    carry a gradient are all that is needed to take the same step again, bit for bit.

    Raises:
        InvalidSample: a sample must not be trained.
    """
    use = [True] * len(samples)
    silent: list[Silence | None] = [None] * len(samples)
    gap: float | None = None

    def told(objective: Objective) -> list[Silence | None]:
        reasons = why_silent(samples, objective, options)
        return [before or reason for before, reason in zip(silent, reasons, strict=True)]

    while True:
        objective = build_objective(samples, options, use=use)
        silent, use = told(objective), objective.carried()
        forwards = plan_forwards(samples, options.tokens_per_forward, use)
        if not any(use) or not options.needs_measuring:
            return Prepared(objective, forwards, silent, gap)
        measured = measure(model, others, samples, forwards, objective, options)
        if measured.proximal is not None and gap is None:
            gap = log_prob_gap(measured.proximal, objective.behaviour, objective.kept)
        objective = build_objective(samples, options, measured, use)
        silent, before, use = told(objective), use, objective.carried()
        if use == before or not any(use):
            return Prepared(objective, forwards, silent, gap)
