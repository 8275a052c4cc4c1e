"""Votes and how they add up: the majority of the valid ones, and nothing made up where there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Vote:
    """One vote. `score` is +1, 0 or -1 where `valid`; None where `invalid` (no declared answer, the text is in `raw`)
    or `error` (no answer came)."""

    status: Literal["valid", "invalid", "error"]
    annotator_kind: Literal["LLM", "CODE", "HUMAN"]
    annotator: str
    score: int | None = None
    explanation: str | None = None
    raw: str | None = None
    prompt_digest: str | None = None
    answer_digest: str | None = None


@dataclass(frozen=True)
class Tally:
    """What votes add up to. `value` is None below the quorum, and 0.0 both for a neutral majority (`scored`) and
    for a tie (`tie`)."""

    status: Literal["scored", "tie", "abstained"]
    value: float | None
    valid: int
    total: int


def tally(scores: Sequence[int | None], *, quorum: int) -> Tally:
    """The score that most valid votes gave; None in `scores` is a vote that is not valid and counts for nothing.

    More than every other score is enough, more than half is not asked for. Two scores with equally many votes are a
    tie, which is neutral: an even number of surviving votes never decides by accident.
    """
    valid = [score for score in scores if score is not None]
    if len(valid) < max(quorum, 1):
        return Tally("abstained", None, len(valid), len(scores))
    counts = Counter(valid)
    most = max(counts.values())
    leaders = [score for score, count in counts.items() if count == most]
    if len(leaders) > 1:
        return Tally("tie", 0.0, len(valid), len(scores))
    return Tally("scored", float(leaders[0]), len(valid), len(scores))
