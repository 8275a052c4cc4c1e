"""Teachers inside the learner, for self-distillation without a server: the policy's own past with the hint in its
prompt (SDPO, arXiv 2601.20802).

`ema`: an exponential moving average of the weights. It lags behind the policy, so that a bad step does not at once
teach itself.

`best`: the weights of the version whose turns were liked most. A version's score is the mean reward of its samples, by
the oldest version among a sample's tokens; a version with fewer than `min_samples` scored samples has none. The best of
many noisy means is in part the luckiest one, so `min_samples` should be tens where rewards are noisy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from learner.companions import Lent
from learner.samples import TrainingSample


class EmaTeacher:
    """values <- values + rate (policy - values) after each step, in float32: a step of 1e-6 times a rate of 0.05 would
    be rounded away in bfloat16. It begins as the policy. 4 bytes a trainable parameter.

    Raises:
        ValueError: the rate is not in (0, 1].
    """

    def __init__(self, lent: Lent, rate: float) -> None:
        if not 0 < rate <= 1:
            raise ValueError(f"an EMA's rate must be above 0 and at most 1, not {rate}")
        self._lent, self._rate = lent, rate
        self._values = [master.detach().clone() for master in lent.masters()]

    def model(self) -> AbstractContextManager[Any]:
        """The policy's module with the averaged weights."""
        return self._lent.holding(self._values)

    @torch.no_grad()
    def after_step(self, samples: Sequence[TrainingSample]) -> None:
        """Move towards the policy."""
        for value, master in zip(self._values, self._lent.masters(), strict=True):
            value.lerp_(master, self._rate)

    def state_dict(self) -> dict[str, Any]:
        """The averages, exact."""
        return {"values": self._values}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore exactly what `state_dict` gave."""
        for value, saved in zip(self._values, state["values"], strict=True):
            value.copy_(saved)


@dataclass(eq=False)
class _Past:
    """One version: its weights in the model's dtype, and the sum and number of its samples' rewards."""

    values: list[Tensor]
    total: float = 0.0
    count: int = 0


class BestTeacher:
    """The best of the past versions. `candidates` versions are kept beside the best one, the policy's newest among
    them, 2 bytes a trainable parameter each in bfloat16; a sample of an older version says nothing any more, so there
    should be as many as the staleness bound plus one. Before any version has a score the first one teaches.

    Raises:
        ValueError: `candidates` or `min_samples` is below 1.
    """

    def __init__(self, lent: Lent, *, candidates: int, min_samples: int) -> None:
        if candidates < 1 or min_samples < 1:
            raise ValueError(f"candidates ({candidates}) and min_samples ({min_samples}) must be at least 1")
        self._lent, self._candidates, self._min_samples = lent, candidates, min_samples
        self._best = _Past(lent.rounded())
        self._recent = [self._best]  # by age: the policy's newest version first

    def model(self) -> AbstractContextManager[Any]:
        """The policy's module with the best version's weights."""
        return self._lent.holding(self._best.values)

    def score(self) -> float | None:
        """Mean reward of the version that teaches; None where it has too few samples."""
        score = self._score(self._best)
        return score if math.isfinite(score) else None

    def after_step(self, samples: Sequence[TrainingSample]) -> None:
        """Credit each sample's reward to the version that made it, choose, and keep the new version.

        `staleness` of a sample is its age before the step. Of equal scores the newer version's is taken.
        """
        for sample in samples:
            age, reward = sample.staleness, sample.reward
            if age is None or reward is None or not math.isfinite(reward) or not 0 <= age < len(self._recent):
                continue
            self._recent[age].total += reward
            self._recent[age].count += 1
        for past in reversed(self._recent):
            if self._score(past) >= self._score(self._best) and past.count >= self._min_samples:
                self._best = past
        self._recent = [_Past(self._lent.rounded()), *self._recent][: self._candidates]

    def state_dict(self) -> dict[str, Any]:
        """Every version kept, and which is the best, exact."""
        kept = list(self._recent)
        if self._best not in kept:
            kept.append(self._best)
        return {
            "versions": [{"values": past.values, "total": past.total, "count": past.count} for past in kept],
            "recent": len(self._recent),
            "best": kept.index(self._best),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore exactly what `state_dict` gave."""
        like = self._lent.rounded()
        kept = [
            _Past([v.to(p) for v, p in zip(one["values"], like, strict=True)], one["total"], one["count"])
            for one in state["versions"]
        ]
        self._recent, self._best = kept[: state["recent"]], kept[state["best"]]

    def _score(self, past: _Past) -> float:
        return past.total / past.count if past.count >= self._min_samples else -math.inf
