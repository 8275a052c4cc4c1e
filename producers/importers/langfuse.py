"""Langfuse's exports: traces with their observations and scores, one trace a file, a JSON list, or JSON lines.

- Session: a trace's `sessionId`, else the trace. Turn: an observation of type GENERATION; where one stands within
  another, the inner one. AGENT, CHAIN and other observations repeat what their generations say, and are not turns; nor
  is what Langfuse's own judges said (environments that begin with `langfuse-`).
- Who follows whom, and the next states (`tool_result`, `user_reply`), are read from the requests; an observation of
  type TOOL adds the result that no request shows: see `producers.importers.trace`.
- Scores: one that a person gave (source ANNOTATION, or source API with `feedback` in its name) is `feedback.given`; any
  other is a `test_verdict` with the score in words. It is on its observation, else on the last turn of its trace or
  session. Numbers from 0 to 1 are verdicts, turned round for toxicity and hallucination, where 1 is bad.
- The model has the name that the observation has, else `unknown`.

Input and output may be JSON, JSON in a string, or that once more. An observation that is there several times is taken
once, later versions over earlier ones. Cost and usage are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from producers.importers.base import UNKNOWN_POLICY, RefusedRow, Row, Unreadable, check_storable
from producers.importers.detect import Head
from producers.importers.encoded import decoded
from producers.importers.json_rows import json_rows, shape_of
from producers.importers.json_scan import Broken, Item, excerpt_of, json_type, read_text, scan_object
from producers.importers.langfuse_scores import scored_of
from producers.importers.model_calls import model_call, tool_run
from producers.importers.spans import Scored, Span, moment, rows_of_spans, sampling_of

NAME = "langfuse"
SOURCE = "hindstream/import/langfuse"

_OWN_ENVIRONMENT = "langfuse-"
Fields = dict[str, Any]


def sniff(head: Head) -> bool:
    """See `producers.importers.base.Importer.sniff`."""
    first = head.object
    trace = first.get("trace")
    if isinstance(trace, dict) and "id" in trace:
        return "observations" in first or "projectId" in trace
    if isinstance(first.get("observations"), list):
        return "id" in first and "timestamp" in first
    keys = {_camel(key) for key in first}
    return {"traceId", "startTime", "type", "id"} <= keys and "parentObservationId" in keys


def read(path: Path) -> Iterator[Row]:
    """See `producers.importers.base.Importer.read`. The line of every row is that of its observation."""
    export = _Export()
    for item in _items(path):
        if isinstance(item, Broken):
            yield RefusedRow(path.name, item.line, item.reason, item.excerpt)
            continue
        try:
            export.take(item.value, item.line)
        except Unreadable as err:
            shown = item.value
            if isinstance(shown, dict):
                shown = {name: value for name, value in shown.items() if name != "observations"}
            yield RefusedRow(path.name, item.line, str(err), excerpt_of(shown))
    for reason, found in export.refused:
        yield RefusedRow(path.name, found.line, reason, excerpt_of(found.value))
    spans: list[Span] = []
    for key, (row, line) in export.observations.items():
        try:
            spans.append(export.span(key, row, line))
        except Unreadable as err:
            yield RefusedRow(path.name, line, f"observation {key}: {err}", excerpt_of(row))
            spans.append(export.bare(key, row, line))
    scored: list[Scored] = []
    for row, line in export.scores:
        try:
            scored.append(scored_of(row, line))
        except Unreadable as err:
            yield RefusedRow(path.name, line, str(err), excerpt_of(row))
    spans = [span for span in spans if not export.is_own(span)]
    yield from rows_of_spans(spans, scored, source=SOURCE, format_name=NAME, file=path.name)


class _Export:
    """What a file holds, gathered whatever its layout."""

    def __init__(self) -> None:
        self.traces: dict[str, Fields] = {}
        self.observations: dict[str, tuple[Fields, int]] = {}
        self.scores: list[tuple[Fields, int]] = []
        self.refused: list[tuple[str, Item]] = []

    def take(self, value: Any, line: int) -> None:
        """One row: a trace with what it holds, an observation, or a score."""
        if not isinstance(value, dict):
            raise Unreadable(f"is a JSON {json_type(value)}, not an object")
        row = {_camel(key): inner for key, inner in value.items()}
        if isinstance(row.get("trace"), dict):
            self._trace({**row["trace"], "observations": row.get("observations")}, line)
        elif isinstance(row.get("observations"), list) or ("timestamp" in row and "traceId" not in row):
            self._trace(row, line)
        elif "startTime" in row and isinstance(row.get("type"), str):
            self._observation(row, line)
        elif "name" in row and ("value" in row or "stringValue" in row):
            self.scores.append((row, line))
        else:
            raise Unreadable("is neither a trace nor an observation nor a score")

    def _trace(self, trace: Fields, line: int) -> None:
        key = _name(trace.get("id"))
        mine = {"traceId": key} if key else {}
        observations = trace.get("observations")
        for one in observations if isinstance(observations, list) else []:
            item = one if isinstance(one, Item) else Item(one, line)
            try:
                if not isinstance(item.value, dict):
                    raise Unreadable(f"an observation is a JSON {json_type(item.value)}, not an object")
                self._observation(mine | item.value, item.line)
            except Unreadable as err:
                self.refused.append((str(err), item))
        if key is None:
            raise Unreadable("a trace without `id`")
        self.traces[key] = {name: trace.get(name) for name in ("sessionId", "environment")}
        for name in ("scores", "corrections"):
            rows = trace.get(name)
            for score in rows if isinstance(rows, list) else []:
                if isinstance(score, dict):
                    self.scores.append((mine | score, line))

    def _observation(self, row: Fields, line: int) -> None:
        key = row.get("id")
        if not isinstance(key, str) or not key or not isinstance(row.get("traceId"), str):
            raise Unreadable("an observation without `id` or `traceId`")
        check_storable(row)
        if key in self.observations:
            other, line = self.observations[key][0], min(line, self.observations[key][1])
            older, newer = sorted((other, row), key=lambda one: str(one.get("updatedAt") or ""))
            row = older | {name: value for name, value in newer.items() if value is not None}
        self.observations[key] = (row, line)

    def span(self, key: str, row: Fields, line: int) -> Span:
        """The observation as a span.

        Raises:
            Unreadable: it is a generation or a tool's run that cannot be read.
        """
        bare = self.bare(key, row, line)
        common: dict[str, Any] = {"key": key, "order": moment(row.get("startTime"), line), "line": line}
        metadata = decoded(row.get("metadata"))
        attributes = metadata.get("attributes") if isinstance(metadata, dict) else None
        attributes = attributes if isinstance(attributes, dict) else {}
        if row.get("type") == "GENERATION" and not self.is_own(bare):
            call = model_call(
                **common,
                sent=row.get("input"),
                said=row.get("output"),
                failed=row.get("level") == "ERROR",
                tools=attributes.get("gen_ai.tool.definitions"),
                policy=_name(row.get("model")) or UNKNOWN_POLICY,
                sampling=sampling_of(row.get("modelParameters")),
                times=(_name(row.get("startTime")), _name(row.get("endTime"))),
            )
            return replace(bare, call=call)
        if row.get("type") == "TOOL":
            run = tool_run(
                **common,
                name=_name(row.get("name")) or "",
                given=row.get("input"),
                result=row.get("output"),
                call_id=_name(attributes.get("gen_ai.tool.call.id")),
                ended_at=_name(row.get("endTime")),
            )
            return replace(bare, run=run)
        return bare

    def bare(self, key: str, row: Fields, line: int) -> Span:
        """The observation as a span that is neither turn nor tool."""
        trace = row["traceId"]
        about = self.traces.get(trace, {})
        session = _name(about.get("sessionId")) or _name(row.get("sessionId")) or trace
        raw = {name: row.get(name) for name in ("type", "name", "startTime", "parentObservationId", "input", "output")}
        parent = _name(row.get("parentObservationId"))
        return Span(key=key, parent=parent, trace=trace, session=session, line=line, raw=raw)

    def is_own(self, span: Span) -> bool:
        """Whether Langfuse's own judge made it."""
        row = self.observations[span.key][0]
        environment = _name(row.get("environment")) or _name(self.traces.get(span.trace, {}).get("environment"))
        return environment is not None and environment.startswith(_OWN_ENVIRONMENT)


def _items(path: Path) -> Iterator[Item | Broken]:
    """The rows of the file. One object of many lines is taken apart, so that each observation has its own line."""
    if shape_of(path) != "one":
        yield from json_rows(path)
        return
    scanned = scan_object(read_text(path), frozenset({"observations"}))
    yield from scanned.broken
    fields = {name: found.value for name, found in scanned.fields.items()}
    observations = scanned.fields.get("observations")
    items = (observations.items if observations else None) or []
    yield from (item for item in items if isinstance(item, Broken))
    if observations is not None and observations.items is not None:
        fields["observations"] = [item for item in items if isinstance(item, Item)]
    if fields:
        yield Item(fields, 1)


def _camel(name: str) -> str:
    """A field's name as the API has it; exports to files spell it with underscores."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest) if rest and first else name


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
