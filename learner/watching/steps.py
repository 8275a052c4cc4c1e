"""A committed step as watchers see it, and what a watcher is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from learner.commit import StepRecord  # it needs torch, which a watcher need not wait for


@dataclass(frozen=True, kw_only=True)
class StepSeen:
    """One consumed micro-batch, after its commit.

    `seq`: its place in the run, from 1. `version`: what it made; None where no optimizer step was taken, and then
    `skipped_reason` says why. `drops`: samples by drop reason. `tokens`: response tokens trained.
    """

    run: str
    policy: str
    seq: int
    version: int | None
    skipped_reason: str | None
    metrics: Mapping[str, float | None]
    samples_trained: int
    drops: Mapping[str, int] = field(default_factory=dict)
    tokens: int
    seconds: float

    @classmethod
    def of(cls, record: StepRecord) -> StepSeen:
        """The step that `record` committed."""
        drops = Counter(end.drop.reason for end in record.ends if end.drop)
        return cls(
            run=record.message.run,
            policy=record.message.policy,
            seq=record.message.seq,
            version=record.made.version if record.made else None,
            skipped_reason=record.skipped_reason,
            metrics=record.metrics,
            samples_trained=len(record.ends) - drops.total(),
            drops=dict(drops),
            tokens=record.tokens,
            seconds=record.seconds,
        )

    def values(self) -> dict[str, float]:
        """Every metric that can be said of the step, by name; what cannot is not there."""
        values = {name: value for name, value in self.metrics.items() if value is not None}
        values["seconds"] = self.seconds
        values["samples_trained"] = float(self.samples_trained)
        values["samples_dropped"] = float(sum(self.drops.values()))
        if self.tokens and self.seconds > 0:
            values["tokens_per_second"] = self.tokens / self.seconds
        return values


class StepObserver(Protocol):
    """Whoever wants to see steps. Called in the order of the run, by one thread, once for each committed step of this
    process; a step that a crash took between its commit and the call is not seen, so the table is the record. May
    raise, and may take its time: training neither stops nor waits."""

    def observe(self, step: StepSeen) -> None:
        """Look at one step."""

    def close(self) -> None:
        """No step follows: write out what is held back, let go of files and ports."""


def line(step: StepSeen) -> str:
    """A step in one line of a log; what cannot be said of it is left out."""
    values = step.values()
    outcome = f"no step ({step.skipped_reason})" if step.version is None else f"version {step.version}"
    drops = ", ".join(f"{number} {reason}" for reason, number in sorted(step.drops.items()))
    parts = [
        f"micro-batch {step.seq}: {outcome}",
        f"{step.samples_trained} trained",
        f"{sum(step.drops.values())} dropped" + (f" ({drops})" if drops else ""),
        f"{step.seconds:.1f} s",
    ]
    for name, pattern in _IN_A_LINE.items():
        if name in values:
            parts.append(pattern.format(values[name]))
    return ", ".join(parts)


_IN_A_LINE = {
    "tokens_per_second": "{:.0f} tokens/s",
    "reward_mean": "reward {:+.2f}",
    "kl_k3": "kl {:.4f}",
    "staleness_mean": "staleness {:.1f}",
}
