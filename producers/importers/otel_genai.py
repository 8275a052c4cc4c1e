"""OpenTelemetry's GenAI spans (current conventions) as OTLP JSON: one object, or JSON lines as the collector writes.

- Session: `gen_ai.conversation.id`. Spans without it belong to the only conversation of their trace, else to the trace.
- Turn: a span of operation `chat`, `generate_content` or `text_completion`; where one stands within another, the inner
  one. Its request is `gen_ai.system_instructions` and `gen_ai.input.messages`, its answers `gen_ai.output.messages`
  (several: candidates of one prompt), as attributes or in the event `gen_ai.client.inference.operation.details`, which
  may stand in the span or be a log record. `invoke_agent` spans repeat what the chat spans below them say, and are not
  turns.
- Next states are read from the requests; a span of operation `execute_tool` adds the result that no request shows
  (`gen_ai.tool.call.result`): see `producers.importers.trace`. An `error.type` is the result of a tool that failed.
- `gen_ai.evaluation.result` events become a `test_verdict` on their span's turn.
- Order within a trace is by `startTimeUnixNano`, outweighed by what the requests hold.

A chat span without messages was recorded with content capture off, or by conventions before 1.37 (`gen_ai.prompt`, an
event for each message): it is refused. Token counts are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from producers.importers.base import UNKNOWN_POLICY, RefusedRow, Row, Unreadable
from producers.importers.detect import Head
from producers.importers.json_rows import json_rows
from producers.importers.json_scan import Broken, excerpt_of
from producers.importers.model_calls import model_call, tool_run
from producers.importers.otlp import DETAILS, EVALUATION, Otlp, OtlpEvent, OtlpSpan, iso_of
from producers.importers.scores import Score
from producers.importers.spans import Scored, Span, rows_of_spans, sampling_of

NAME = "otel"
SOURCE = "hindstream/import/otel"

_MODEL = frozenset({"chat", "generate_content", "text_completion"})
_REQUEST = "gen_ai.request."


def sniff(head: Head) -> bool:
    """See `producers.importers.base.Importer.sniff`."""
    return any(isinstance(head.object.get(name), list) for name in ("resourceSpans", "resourceLogs"))


def read(path: Path) -> Iterator[Row]:
    """See `producers.importers.base.Importer.read`. The line is that of the object in which the span stands."""
    found = Otlp()
    for item in json_rows(path):
        if isinstance(item, Broken):
            yield RefusedRow(path.name, item.line, item.reason, item.excerpt)
            continue
        for reason, value in found.take(item.value, item.line):
            yield RefusedRow(path.name, item.line, reason, excerpt_of(value))
    found.join_events()
    sessions = _sessions(found)
    spans: list[Span] = []
    scored: list[Scored] = []
    for span in found.spans.values():
        session = _text(span.attributes, "gen_ai.conversation.id") or sessions.get(span.trace, span.trace)
        raw = [span.name, span.start, span.attributes, [[one.name, one.attributes] for one in span.events]]
        bare = Span(key=span.key, parent=span.parent, trace=span.trace, session=session, line=span.line, raw=raw)
        try:
            spans.append(_read(bare, span))
        except Unreadable as err:
            yield RefusedRow(path.name, span.line, f"span {span.key}: {err}", excerpt_of(span.name))
            spans.append(bare)
        for index, event in enumerate(span.events):
            if event.name == EVALUATION:
                score = _score(event, f"{span.key}/{index}")
                scored.append(Scored(score=score, line=span.line, span=span.key, trace=span.trace))
    yield from (RefusedRow(path.name, line, reason, "") for line, reason in found.homeless())
    yield from rows_of_spans(spans, scored, source=SOURCE, format_name=NAME, file=path.name)


def _sessions(found: Otlp) -> dict[str, str]:
    """For each trace that has exactly one conversation, its id."""
    named: dict[str, set[str]] = {}
    for span in found.spans.values():
        if name := _text(span.attributes, "gen_ai.conversation.id"):
            named.setdefault(span.trace, set()).add(name)
    return {trace: next(iter(names)) for trace, names in named.items() if len(names) == 1}


def _read(bare: Span, span: OtlpSpan) -> Span:
    said = dict(span.attributes)
    for event in span.events:
        if event.name == DETAILS:
            said = event.attributes | said
    operation = _text(said, "gen_ai.operation.name")
    common: dict[str, Any] = {"key": span.key, "order": (0, span.start, span.line), "line": span.line}
    if operation == "execute_tool":
        result = said.get("gen_ai.tool.call.result")
        if result is None and isinstance(said.get("error.type"), str):
            result = f"error: {said['error.type']}"
        run = tool_run(
            **common,
            name=_text(said, "gen_ai.tool.name") or "",
            given=said.get("gen_ai.tool.call.arguments"),
            result=result,
            call_id=_text(said, "gen_ai.tool.call.id"),
            ended_at=iso_of(span.end),
        )
        return replace(bare, run=run)
    if operation not in _MODEL:
        return bare
    if "gen_ai.input.messages" not in said and "gen_ai.output.messages" not in said:
        raise Unreadable("it has no messages: content capture was off, or it follows conventions before 1.37")
    parameters = {key.removeprefix(_REQUEST): value for key, value in said.items() if key.startswith(_REQUEST)}
    call = model_call(
        **common,
        sent=said.get("gen_ai.input.messages"),
        said=said.get("gen_ai.output.messages"),
        failed="error.type" in said or span.failed,
        tools=said.get("gen_ai.tool.definitions"),
        system=said.get("gen_ai.system_instructions"),
        finish=said.get("gen_ai.response.finish_reasons"),
        policy=_text(said, "gen_ai.response.model") or _text(said, "gen_ai.request.model") or UNKNOWN_POLICY,
        sampling=sampling_of(parameters),
        times=(iso_of(span.start), iso_of(span.end)),
    )
    return replace(bare, call=call)


def _score(event: OtlpEvent, key: str) -> Score:
    value = event.attributes.get("gen_ai.evaluation.score.value")
    return Score(
        key=key,
        name=_text(event.attributes, "gen_ai.evaluation.name") or "evaluation",
        value=value if isinstance(value, (int, float)) else None,
        label=_text(event.attributes, "gen_ai.evaluation.score.label"),
        comment=_text(event.attributes, "gen_ai.evaluation.explanation"),
        by_people=False,
        given_at=iso_of(event.time),
    )


def _text(holder: dict[str, Any], name: str) -> str | None:
    value = holder.get(name)
    return value if isinstance(value, str) and value else None
