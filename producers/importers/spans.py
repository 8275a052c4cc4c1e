"""Spans of a tracing tool as sessions: who belongs together, which spans are turns, which turn a score is on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from producers.importers.base import RefusedRow, Row, SessionDraft, Unreadable, session_id_of
from producers.importers.calls import ModelCall, ToolRun
from producers.importers.json_scan import excerpt_of
from producers.importers.scores import Score, add_score
from producers.importers.trace import Loose, Trace

_SAMPLING = ("temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "max_output_tokens", "seed")
_PENALTIES = ("frequency_penalty", "presence_penalty", "repetition_penalty")


@dataclass(frozen=True, kw_only=True)
class Span:
    """One span. `session` is what groups spans, `raw` its row, from which the session's id is made."""

    key: str
    parent: str | None
    trace: str
    session: str
    line: int
    raw: Any
    call: ModelCall | None = None
    run: ToolRun | None = None


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A score and what it is on: a span; else the whole trace; else the whole session."""

    score: Score
    line: int
    span: str | None = None
    trace: str | None = None
    session: str | None = None


@dataclass
class _Session:
    name: str
    spans: list[Span] = field(default_factory=list)
    scores: list[Scored] = field(default_factory=list)


def rows_of_spans(
    spans: Iterable[Span], scores: Iterable[Scored], *, source: str, format_name: str, file: str
) -> Iterator[Row]:
    """The events of every session, in the order of their first spans, and what is refused of them.

    A model call within which another one stands is a wrapper that says the same again, so only the innermost is a turn.
    A score on a span that is no turn is on the last turn within it; on a trace or session, on the last turn of it.
    """
    sessions: dict[str, _Session] = {}
    of_trace: dict[str, str] = {}
    for span in spans:
        sessions.setdefault(span.session, _Session(span.session)).spans.append(span)
        of_trace.setdefault(span.trace, span.session)
    for scored in scores:
        name = of_trace.get(scored.trace or "", scored.session)
        if name is None or name not in sessions:
            reason = f"the score {scored.score.name!r} is on a trace that is not in the file"
            yield RefusedRow(file, scored.line, reason, excerpt_of(scored.score.key))
        else:
            sessions[name].scores.append(scored)
    silent = {name for name, session in sessions.items() if not any(one.call or one.run for one in session.spans)}
    if silent or not sessions:
        line = min((sessions[name].spans[0].line for name in silent), default=1)
        reason = f"{len(silent)} traces without a model call that could be read, so without a turn"
        yield RefusedRow(
            file, line, reason if silent else "the file has no trace, so no turn", excerpt_of(sorted(silent))
        )
    for name, session in sessions.items():
        if name not in silent:
            yield from _rows(session, source, format_name, file)


def _rows(session: _Session, source: str, format_name: str, file: str) -> Iterator[Row]:
    first = session.spans[0]
    by_key = {span.key: span for span in session.spans}
    outer = _outer_calls(session.spans, by_key)
    try:
        raw = sorted(([span.key, span.raw] for span in session.spans), key=lambda one: str(one[0]))
        session_id = session_id_of(source, [session.name, raw])
    except Unreadable as err:
        yield RefusedRow(file, first.line, str(err), "")
        return
    draft = SessionDraft(source=source, session_id=session_id, format_name=format_name, file=file)
    trace = Trace(draft)
    calls = [span.call for span in session.spans if span.call is not None and span.key not in outer]
    loose = trace.place(calls, [span.run for span in session.spans if span.run is not None])
    if not calls:
        loose.append(Loose(first.key, first.line, f"no model call of {session.name!r} could be read: there is no turn"))
    for one in loose:
        yield RefusedRow(file, one.line, one.reason, excerpt_of(by_key[one.key].raw))
    scores = {scored.score.key: scored for scored in session.scores}  # a score that is there twice is one
    for scored in sorted(scores.values(), key=lambda one: (one.score.given_at or "", one.score.key)):
        try:
            turn = _turn_of(scored, session.spans, by_key, trace.number_of)
            add_score(draft, turn, scored.score, scored.line)
        except Unreadable as err:
            yield RefusedRow(file, scored.line, str(err), excerpt_of(scored.score.key))
    yield from draft.events(max(span.line for span in session.spans))


def _turn_of(scored: Scored, spans: list[Span], by_key: Mapping[str, Span], number_of: Mapping[str, int]) -> int:
    """Number of the turn that a score is on.

    Raises:
        Unreadable: there is none.
    """
    if scored.span is not None:
        inside = [number for key, number in number_of.items() if scored.span in _path(by_key[key], by_key)]
        what = f"span {scored.span!r}"
    else:
        inside = [n for key, n in number_of.items() if scored.trace is None or by_key[key].trace == scored.trace]
        what = f"trace {scored.trace!r}" if scored.trace else f"session {scored.session!r}"
    if not inside:
        raise Unreadable(f"the score {scored.score.name!r} is on {what}, in which there is no turn")
    return max(inside)


def _outer_calls(spans: list[Span], by_key: Mapping[str, Span]) -> set[str]:
    """Keys of the model calls within which another one stands."""
    return {above for span in spans if span.call is not None for above in _path(span, by_key)[1:] if by_key[above].call}


def _path(span: Span, by_key: Mapping[str, Span]) -> list[str]:
    """Keys from the span up to its root, as far as they are in the file; a circle is walked once."""
    path: dict[str, None] = {}
    at: Span | None = span
    while at is not None and at.key not in path:
        path[at.key] = None
        at = by_key.get(at.parent) if at.parent else None
    return list(path)


def moment(time: Any, line: int) -> tuple[int, float, int]:
    """A sort key of an ISO 8601 time or a number of seconds: rows without a time after those with, by their line."""
    if isinstance(time, str):
        try:
            at = datetime.fromisoformat(time.strip())
            at = at if at.tzinfo else at.replace(tzinfo=UTC)
            return 0, at.timestamp(), line
        except (ValueError, OverflowError):
            return 1, 0.0, line
    if isinstance(time, (int, float)) and not isinstance(time, bool) and time == time and abs(time) < 1e18:
        return 0, float(time), line
    return 1, 0.0, line


def sampling_of(parameters: Any) -> dict[str, Any]:
    """The sampling parameters among a model's parameters, numbers only."""
    if not isinstance(parameters, dict):
        return {}
    found = {name: parameters.get(name) for name in (*_SAMPLING, *_PENALTIES)}
    return {k: v for k, v in found.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}


def tools_of(value: Any) -> list[dict[str, Any]]:
    """Tool definitions as they are, where they are a list of objects; else none."""
    return value if isinstance(value, list) and all(isinstance(tool, dict) for tool in value) else []
