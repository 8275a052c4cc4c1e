"""Scores that a tracing tool keeps beside its traces, as feedback of people or as verdicts of the environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from producers.importers.base import SessionDraft, Unreadable

LOWER_IS_BETTER = frozenset(
    {
        "bias",
        "controversiality",
        "criminality",
        "hallucination",
        "harmfulness",
        "insensitivity",
        "maliciousness",
        "misogyny",
        "toxicity",
    }
)
"""Names of scores, as Langfuse's and LangChain's ready-made judges have them, where 1 is the worst."""

_GOOD = frozenset({"up", "thumbs_up", "thumbs up", "thumbsup", "good", "positive", "like", "correct", "yes"})
_BAD = frozenset({"down", "thumbs_down", "thumbs down", "thumbsdown", "bad", "negative", "dislike", "incorrect", "no"})


@dataclass(frozen=True, kw_only=True)
class Score:
    """One score as the tool has it. `key` is its id there, `by_people` says whether a person gave it."""

    key: str
    name: str
    value: float | bool | None
    by_people: bool
    label: str | None = None
    comment: str | None = None
    correction: str | None = None
    author: str | None = None
    given_at: str | None = None


def add_score(draft: SessionDraft, turn: int, score: Score, line: int) -> None:
    """Record the score on the turn with number `turn`.

    A person's becomes `feedback.given`: a number from 0 to 1 is stretched to [-1, 1], one below 0 stays, a label counts
    as thumbs, a correction as correction. Any other becomes a `test_verdict` whose text is the score in words; it has a
    verdict where the value is true, false or a number from 0 to 1 (turned round where lower is better).

    Raises:
        Unreadable: a person's score on a scale that is not known.
    """
    if score.by_people:
        number, thumbs = _of_person(score)
        draft.add_feedback(
            turn,
            score.key,
            score=number,
            thumbs=thumbs,
            correction=score.correction,
            author=score.author,
            given_at=score.given_at,
        )
        return
    draft.add_next_state(
        turn,
        "test_verdict",
        line=line,
        content=_words(score),
        verdict=_verdict(score),
        observed_at=score.given_at,
    )


def _of_person(score: Score) -> tuple[float | None, Literal["up", "down"] | None]:
    value = score.value
    if isinstance(value, bool):
        return (1.0 if value else -1.0), None
    if value is not None:
        if -1.0 <= value <= 1.0:  # NaN is not
            return (2.0 * value - 1.0 if value >= 0 else float(value)), None
        raise Unreadable(f"a person's score {score.name!r} is {value!r}, on a scale that the file does not say")
    label = (score.label or "").strip().lower()
    if label in _GOOD or label in _BAD:
        return None, "up" if label in _GOOD else "down"
    if score.correction:
        return None, None
    raise Unreadable(f"a person's score {score.name!r} has no number, and {score.label!r} is not known as good or bad")


def _verdict(score: Score) -> float | None:
    value = score.value
    if value is None or not 0.0 <= value <= 1.0:  # NaN is not
        return None
    # 1 - 0.8 is 0.19999999999999996; a judge's score has no more than a few digits.
    return round(1.0 - value, 9) if score.name.strip().lower() in LOWER_IS_BETTER else float(value)


def _words(score: Score) -> str:
    value = score.label
    if isinstance(score.value, bool):
        value = str(score.value).lower()
    elif score.value is not None:
        value = f"{score.value:g}" if isinstance(score.value, float) else str(score.value)
    said = f"{score.name}: {value}" if value else score.name
    return f"{said} ({score.comment})" if score.comment else said
