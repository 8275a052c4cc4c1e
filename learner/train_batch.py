"""One micro-batch through the trainer: what of it is trained, what is dropped and why, and what the step says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Protocol

from learner.batches import Drop, Loaded, why_not
from learner.commit import SampleEnd
from learner.errors import LearnerStopped
from learner.metrics import Metrics
from learner.samples import TrainingSample
from learner.step import StepOptions, StepResult
from schemas.states import DROP_REASONS


@dataclass(frozen=True)
class Trained:
    """A micro-batch after its training. `skipped_reason` says why no optimizer step was taken; then the weights are bit
    for bit what they were, and every sample is dropped. `tokens` counts the response tokens that carried a gradient."""

    ends: list[SampleEnd]
    metrics: Metrics
    skipped_reason: str | None
    samples: int
    tokens: int


class Trains(Protocol):
    """What takes the step: a trainer, or a policy of several ranks."""

    @property
    def options(self) -> StepOptions:
        """Of the recipe."""

    def train(self, samples: Sequence[TrainingSample]) -> StepResult:
        """See `learner.step.PolicyTrainer.train`."""


def train_batch(trainer: Trains, loaded: Sequence[Loaded], *, policy: str, version: int, bound: int) -> Trained:
    """Train what may be trained by weights of `version`.

    The samples marked `trained` are all that is needed to take the same step again: what carried no gradient was in no
    baseline and no normaliser.

    Raises:
        LearnerStopped: engine and trainer are further apart than the recipe allows, and it says to hold such a
            micro-batch; nothing was changed.
    """
    # How old a sample is at its use is known here alone; a past-best teacher credits its reward to that version.
    loaded = [replace(one, sample=replace(one.sample, staleness=_staleness(one, version))) for one in loaded]
    drops = [why_not(one, policy=policy, version=version, bound=bound) for one in loaded]
    places = [place for place, drop in enumerate(drops) if drop is None]
    metrics: Metrics = {}
    skipped: str | None
    if places:
        result = trainer.train([loaded[place].sample for place in places])
        metrics, skipped = dict(result.metrics), result.skipped_reason
        _refuse_gap(trainer.options, result, loaded)
        for place, silent in zip(places, result.silent, strict=True):
            if silent is not None:
                drops[place] = Drop(*silent)
        if skipped == "masked_batch":
            masked = Drop("masked_batch", DROP_REASONS["masked_batch"])
            drops = [masked if drop and drop.reason == "no_signal" else drop for drop in drops]
        elif skipped:
            drops = [drop or Drop(skipped, DROP_REASONS[skipped]) for drop in drops]
    else:
        skipped = "stale" if all(drop and drop.reason == "stale" for drop in drops) else "masked_batch"
    ends = [
        SampleEnd(one.sample.sample_id, _staleness(one, version), drop) for one, drop in zip(loaded, drops, strict=True)
    ]
    staleness = [float(end.staleness) for end in ends if end.drop is None and end.staleness is not None]
    rewards = [one.sample.reward for one, end in zip(loaded, ends, strict=True) if end.drop is None]
    metrics["reward_mean"] = _mean([float(r) for r in rewards if r is not None and math.isfinite(r)])
    metrics["staleness_mean"] = _mean(staleness)
    metrics["staleness_max"] = max(staleness) if staleness else None
    metrics["samples_stale"] = float(sum(drop is not None and drop.reason == "stale" for drop in drops))
    trained = sum(end.drop is None for end in ends)
    tokens = int(metrics.get("tokens") or 0) if trained else 0
    return Trained(ends, metrics, skipped, trained, tokens)


def _refuse_gap(options: StepOptions, result: StepResult, loaded: Sequence[Loaded]) -> None:
    if result.skipped_reason == "logprob_gap" and options.on_gap == "hold":
        gap, limit = result.metrics["logprob_gap_mean"], options.max_logprob_gap
        raise LearnerStopped(
            f"engine and trainer differ by {gap:.4g} nats a token on average over the {len(loaded)} samples of the "
            f"micro-batch that begins with {loaded[0].sample.sample_id}, and the recipe allows {limit:g} "
            "(loss.max_logprob_gap): it is held and nothing was trained. Look whether the engine serves the weights, "
            "the precision and the temperature that it says, then start the learner again; or go on in a run with a "
            'higher limit, or with loss.on_gap = "skip", which drops such micro-batches'
        )


def _staleness(one: Loaded, version: int) -> int | None:
    """None where the sample's version is unknown, or another policy's, as in a replay."""
    if one.replayed or one.oldest_version is None or one.oldest_version > version:
        return None
    return version - one.oldest_version


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
