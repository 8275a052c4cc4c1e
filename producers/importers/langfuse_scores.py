"""Langfuse's scores: who gave each, what it says, and what it is on."""

from __future__ import annotations

from typing import Any

from producers.importers.base import Unreadable
from producers.importers.scores import Score
from producers.importers.spans import Scored


def scored_of(row: dict[str, Any], line: int) -> Scored:
    """Read one score.

    Raises:
        Unreadable: it has no id or no name.
    """
    key, name = row.get("id"), row.get("name")
    if not isinstance(key, str) or not isinstance(name, str):
        raise Unreadable("a score without `id` or `name`")
    source, kind = _name(row.get("source")), _name(row.get("dataType"))
    label = _name(row.get("stringValue")) or _name(row.get("longStringValue")) or _name(row.get("value"))
    correction = label if kind == "CORRECTION" else None
    score = Score(
        key=key,
        name=name,
        value=None if correction else _value(row.get("value"), kind, label),
        label=label,
        correction=correction,
        comment=_name(row.get("comment")),
        by_people=source == "ANNOTATION" or kind == "CORRECTION" or (source == "API" and "feedback" in name.lower()),
        author=_name(row.get("authorUserId")),
        given_at=_name(row.get("timestamp")),
    )
    return Scored(
        score=score,
        line=line,
        span=_name(row.get("observationId")),
        trace=_name(row.get("traceId")),
        session=_name(row.get("sessionId")),
    )


def _value(value: Any, kind: str | None, label: str | None) -> float | bool | None:
    """The number, or true or false. Of a category the number is only its place in a list."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, (int, float)) or (kind == "CATEGORICAL" and label):
        return None
    return bool(value) if kind == "BOOLEAN" else value


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
