"""One micro-batch through the trainer: what of it is trained, what is dropped and why, and what the step says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from learner.batches import Drop, Loaded, why_not
from learner.commit import SampleEnd
from learner.metrics import Metrics
from learner.step import PolicyTrainer
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


def train_batch(trainer: PolicyTrainer, loaded: Sequence[Loaded], *, policy: str, version: int, bound: int) -> Trained:
    """Train what may be trained by weights of `version`.

    The trainer gets only samples that carry a gradient, so the samples marked `trained` are all that is needed to take
    the same step again.
    """
    # How old a sample is at its use is known here alone; a past-best teacher credits its reward to that version.
    loaded = [replace(one, sample=replace(one.sample, staleness=_staleness(one, version))) for one in loaded]
    drops = [why_not(one, policy=policy, version=version, bound=bound, options=trainer.options) for one in loaded]
    use = [one.sample for one, drop in zip(loaded, drops, strict=True) if drop is None]
    metrics: Metrics = {}
    skipped: str | None
    if use:
        result = trainer.train(use)
        metrics, skipped = dict(result.metrics), result.skipped_reason
        if skipped:
            drops = [drop or Drop(skipped, DROP_REASONS[skipped]) for drop in drops]
    else:
        skipped = "stale" if all(drop and drop.reason == "stale" for drop in drops) else "masked_batch"
        masked = Drop("masked_batch", DROP_REASONS["masked_batch"])
        drops = [masked if drop and drop.reason == "no_signal" else drop for drop in drops]
    ends = [
        SampleEnd(one.sample.sample_id, _staleness(one, version), drop) for one, drop in zip(loaded, drops, strict=True)
    ]
    staleness = [end.staleness for end in ends if end.drop is None and end.staleness is not None]
    rewards = [one.sample.reward for one, end in zip(loaded, ends, strict=True) if end.drop is None]
    metrics["reward_mean"] = _mean([reward for reward in rewards if reward is not None and math.isfinite(reward)])
    metrics["staleness_mean"] = _mean(staleness)
    metrics["staleness_max"] = float(max(staleness)) if staleness else None
    metrics["samples_stale"] = float(sum(drop is not None and drop.reason == "stale" for drop in drops))
    tokens = int(metrics.get("tokens") or 0) if staleness else 0
    return Trained(ends, metrics, skipped, len(staleness), tokens)


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _staleness(one: Loaded, version: int) -> int | None:
    """None where the sample's version is unknown, or another policy's."""
    if one.replayed or one.oldest_version is None or one.oldest_version > version:
        return None
    return version - one.oldest_version
