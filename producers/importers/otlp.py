"""OTLP's JSON encoding: spans and log records out of `resourceSpans` and `resourceLogs`, attributes as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from producers.importers.base import Unreadable, check_storable
from producers.importers.json_scan import json_type

DETAILS = "gen_ai.client.inference.operation.details"
"""The event that carries a model call's messages where they are no attributes of the span."""

EVALUATION = "gen_ai.evaluation.result"
"""The event that carries one score."""

_ERROR = (2, "STATUS_CODE_ERROR")
Attributes = dict[str, Any]


@dataclass
class OtlpEvent:
    """An event of a span, or a log record; `time` in nanoseconds since 1970, 0 where it is not known."""

    name: str
    attributes: Attributes
    time: int


@dataclass
class OtlpSpan:
    """One span; times in nanoseconds since 1970, 0 where they are not known."""

    key: str
    trace: str
    parent: str | None
    name: str
    line: int
    start: int
    end: int
    failed: bool
    attributes: Attributes
    events: list[OtlpEvent] = field(default_factory=list)


class Otlp:
    """Gathers what one or many OTLP objects hold. A span that is exported twice is one: the later attributes win."""

    def __init__(self) -> None:
        self.spans: dict[str, OtlpSpan] = {}
        self._records: list[tuple[str, OtlpEvent, int]] = []

    def take(self, value: Any, line: int) -> Iterator[tuple[str, Any]]:
        """Read one object; yields the reason and the value of what is refused."""
        found = 0
        for outer, scopes, rows, read in (
            ("resourceSpans", "scopeSpans", "spans", self._span),
            ("resourceLogs", "scopeLogs", "logRecords", self._record),
        ):
            for row in _nested(value, outer, scopes, rows):
                found += 1
                try:
                    check_storable(row)
                    read(row, line)
                except RecursionError:
                    yield "it is nested too deeply", None
                except Unreadable as err:
                    yield str(err), row
        if not found and not (isinstance(value, dict) and value.keys() & {"resourceSpans", "resourceLogs"}):
            yield f"is a JSON {json_type(value)} without `resourceSpans`", value

    def join_events(self) -> None:
        """Give the log records to their spans, once all are read: they may come first."""
        rest = []
        for key, event, line in self._records:
            span = self.spans.get(key)
            if span is None:
                rest.append((key, event, line))
            else:
                span.events.append(event)
        self._records = rest

    def homeless(self) -> Iterator[tuple[int, str]]:
        """Line and reason of each log record of a model call or a score whose span is not in the file."""
        for key, event, line in self._records:
            yield line, f"the record {event.name} is of span {key!r}, which is not in the file"

    def _span(self, row: Any, line: int) -> None:
        if not isinstance(row, dict):
            raise Unreadable(f"a span is a JSON {json_type(row)}, not an object")
        span_id, trace = row.get("spanId"), row.get("traceId")
        if not isinstance(span_id, str) or not span_id or not isinstance(trace, str) or not trace:
            raise Unreadable("a span without `spanId` or `traceId`")
        key = _key(trace, span_id)
        parent, status = row.get("parentSpanId"), row.get("status")
        span = OtlpSpan(
            key=key,
            trace=trace,
            parent=_key(trace, parent) if isinstance(parent, str) and parent else None,
            name=row["name"] if isinstance(row.get("name"), str) else "",
            line=line,
            start=_nanoseconds(row.get("startTimeUnixNano")),
            end=_nanoseconds(row.get("endTimeUnixNano")),
            failed=isinstance(status, dict) and status.get("code") in _ERROR,
            attributes=_attributes(row.get("attributes")),
        )
        events = row.get("events")
        for event in events if isinstance(events, list) else []:
            if isinstance(event, dict) and isinstance(event.get("name"), str):
                time = _nanoseconds(event.get("timeUnixNano"))
                span.events.append(OtlpEvent(event["name"], _attributes(event.get("attributes")), time))
        before = self.spans.get(key)
        if before is not None:
            span.line, span.attributes = before.line, before.attributes | span.attributes
            span.events = span.events or before.events
        self.spans[key] = span

    def _record(self, row: Any, line: int) -> None:
        if not isinstance(row, dict):
            raise Unreadable(f"a log record is a JSON {json_type(row)}, not an object")
        attributes = _attributes(row.get("attributes"))
        name = row.get("eventName") or attributes.get("event.name")
        span_id, trace = row.get("spanId"), row.get("traceId")
        if name in (DETAILS, EVALUATION) and isinstance(span_id, str) and isinstance(trace, str):
            event = OtlpEvent(str(name), attributes, _nanoseconds(row.get("timeUnixNano")))
            self._records.append((_key(trace, span_id), event, line))


def iso_of(nanoseconds: int) -> str | None:
    """The time in ISO 8601 to the microsecond; None where it is not known."""
    try:
        seconds, rest = divmod(nanoseconds, 10**9)
        at = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)
        return at.isoformat() if nanoseconds > 0 else None
    except (OverflowError, ValueError, OSError):
        return None


def _key(trace: str, span: str) -> str:
    # Span ids are unique within their trace only; hex may be written in either case.
    return f"{trace.lower()}/{span.lower()}"


def _nested(value: Any, *names: str) -> Iterator[Any]:
    """The items of the list in the last of `names`, of each object in the list in the name before it, and so on."""
    inner = value.get(names[0]) if isinstance(value, dict) else None
    for one in inner if isinstance(inner, list) else []:
        if len(names) == 1:
            yield one
        else:
            yield from _nested(one, *names[1:])


def _attributes(pairs: Any) -> Attributes:
    found: Attributes = {}
    for pair in pairs if isinstance(pairs, list) else []:
        if isinstance(pair, dict) and isinstance(pair.get("key"), str):
            found[pair["key"]] = _value(pair.get("value"))
    return found


def _value(value: Any) -> Any:
    """A plain value of OTLP's AnyValue. 64-bit integers are strings there."""
    if not isinstance(value, dict):
        return None
    for name in ("stringValue", "boolValue", "doubleValue", "bytesValue"):
        if name in value:
            return value[name]
    if "intValue" in value:
        try:
            return int(value["intValue"])
        except (TypeError, ValueError):
            return None
    for name in ("arrayValue", "kvlistValue"):
        inner = value.get(name)
        if isinstance(inner, dict):
            values = inner.get("values")
            listed = values if isinstance(values, list) else []
            return [_value(one) for one in listed] if name == "arrayValue" else _attributes(listed)
    return None


def _nanoseconds(time: Any) -> int:
    try:
        return int(time)
    except (TypeError, ValueError, OverflowError):
        return 0
