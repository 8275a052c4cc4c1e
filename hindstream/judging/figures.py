"""How well a judge does on labelled pairs: accuracy, confusion, kappa, and how often it says nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hindstream.compare.agreement import agreement
from hindstream.judging.asking import Cost
from processors.evaluators.judge import RewardResult
from processors.evaluators.prompts import LABELS
from processors.evaluators.quality import Pair

_WORDS = {float(score): label for label, score in LABELS.items()}


@dataclass(frozen=True, kw_only=True)
class Share:
    """Of some pairs: how many the judge scored, and of these how many as labelled."""

    pairs: int
    scored: int
    right: int

    @property
    def accuracy(self) -> float | None:
        """Of the scored ones; None where there are none. A pair without a score is no mistake, and no success."""
        return self.right / self.scored if self.scored else None


@dataclass(frozen=True, kw_only=True)
class Quality:
    """One judge on all pairs. `confusion` counts (label, what the judge said); it said None where it abstained or
    failed, and a tie is neutral. `kappa` is Cohen's, over the scored pairs; None where it says nothing."""

    judge: str
    all: Share
    by_kind: dict[str, Share]
    confusion: dict[tuple[str, str | None], int]
    kappa: float | None
    statuses: dict[str, int]
    mistakes: list[tuple[Pair, RewardResult]]
    cost: Cost


def quality(judge: str, pairs: Sequence[Pair], results: Sequence[RewardResult], cost: Cost) -> Quality:
    """The figures of `results`, one a pair in the same order."""
    both = list(zip(pairs, results, strict=True))
    by_kind: dict[str, list[tuple[Pair, RewardResult]]] = {}
    for pair, result in both:
        by_kind.setdefault(pair.kind, []).append((pair, result))
    scores: Counter[tuple[float | None, float | None]] = Counter((float(p.score), r.value) for p, r in both)
    return Quality(
        judge=judge,
        all=_share(both),
        by_kind={kind: _share(of_kind) for kind, of_kind in by_kind.items()},
        confusion={(_WORDS[a], None if b is None else _WORDS[b]): n for (a, b), n in scores.items() if a is not None},
        kappa=agreement(scores).kappa,
        statuses=dict(Counter(result.status for result in results)),
        mistakes=[(p, r) for p, r in both if r.value is not None and r.value != p.score],
        cost=cost,
    )


def as_json(quality: Quality) -> dict[str, Any]:
    """The figures as plain data; shares that do not exist are null."""
    return {
        "judge": quality.judge,
        **_plain(quality.all),
        "kappa": quality.kappa,
        "statuses": quality.statuses,
        "by_kind": {kind: _plain(share) for kind, share in quality.by_kind.items()},
        "confusion": [{"label": a, "said": b, "pairs": n} for (a, b), n in sorted(quality.confusion.items(), key=str)],
        "mistakes": [
            {"id": p.id, "about": p.about, "label": p.label, "said": _WORDS[r.value or 0.0], "why": r.explanation}
            for p, r in quality.mistakes
        ],
        "cost": vars(quality.cost),
    }


def _share(both: Sequence[tuple[Pair, RewardResult]]) -> Share:
    scored = [(pair, result.value) for pair, result in both if result.value is not None]
    right = sum(value == pair.score for pair, value in scored)
    return Share(pairs=len(both), scored=len(scored), right=right)


def _plain(share: Share) -> dict[str, Any]:
    return {"pairs": share.pairs, "scored": share.scored, "right": share.right, "accuracy": share.accuracy}
