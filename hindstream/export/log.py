"""The log of facts as rows of an archive: every record of a range, its claim check fetched, in the order of the log."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from hindstream.export.layout import EVENTS, UNREADABLE, Format
from hindstream.export.values import Row, iso
from hindstream.export.writing import TableWriter
from processors.dead_letters import Delivery
from processors.erasing.late import is_tombstone
from processors.replay.progress import Offsets
from processors.replay.sources import TopicLog
from schemas.claim_check import BlobStore
from schemas.envelope import MalformedEvent, decode
from schemas.events import SESSION_CLOSED
from schemas.structured import LogRecord, attributes_of, is_strict_json, other_headers, to_line

_NAMED = [column.name for column in EVENTS.columns[:8]]
_TELL_EVERY = 1000


@dataclass(frozen=True, kw_only=True)
class LogExport:
    """What was read of the log: first offset and offset after the last of each partition, and how many records of it
    were events and how many were not."""

    starts: Offsets
    ends: Offsets
    events: int
    unreadable: int


def export_log(
    log: TopicLog,
    bounds: tuple[Offsets, Offsets],
    sessions: frozenset[str] | None,
    blobs: BlobStore,
    writers: dict[str, TableWriter],
    format_: Format,
    on_records: Callable[[int], None],
    *,
    erased: frozenset[str] = frozenset(),
) -> LogExport:
    """Write the records of `log` within `bounds` to the writers `events` and `unreadable`.

    Args:
        sessions: only events of these; None: all.
        on_records: told how many records were read so far.
        erased: sessions of which nothing is written, but for the events that say that they are erased.

    Raises:
        LogAway: no broker answers.
        LogGone: retention deleted a part of the range meanwhile.
    """
    starts, ends = bounds
    counts = {EVENTS.name: 0, UNREADABLE.name: 0}
    for number, (delivery, seconds) in enumerate(log.read(starts, ends, threading.Event()), start=1):
        session = (delivery.key or b"").decode("utf-8", errors="replace")
        if (sessions is None or session in sessions) and (session not in erased or _is_tombstone(delivery)):
            table, row = _row(delivery, datetime.fromtimestamp(seconds, UTC), blobs, format_)
            date = datetime.fromtimestamp(seconds, UTC).date().isoformat()
            writers[table].write(date, row)
            counts[table] += 1
        if number % _TELL_EVERY == 0:
            on_records(number)
    on_records(sum(ends[p] - starts[p] for p in starts))
    return LogExport(starts=starts, ends=ends, events=counts[EVENTS.name], unreadable=counts[UNREADABLE.name])


def _is_tombstone(delivery: Delivery) -> bool:
    """Whether the record says that its session is erased."""
    if ("ce_type", SESSION_CLOSED.encode()) not in delivery.headers:
        return False
    try:
        return is_tombstone(decode(delivery.value, delivery.headers))
    except (MalformedEvent, RecursionError):
        return False


def _row(delivery: Delivery, time: datetime, blobs: BlobStore, format_: Format) -> tuple[str, Row | bytes]:
    """The table that the record belongs to, and its row."""
    try:
        value = _value(delivery, blobs)
        headers = [(name, data) for name, data in delivery.headers if name != "ce_dataref"]
        decode(value, headers)
        record = LogRecord(
            topic=delivery.topic,
            partition=delivery.partition,
            offset=delivery.offset,
            time=iso(time),
            headers=headers,
            value=value,
        )
    except (MalformedEvent, LookupError, RecursionError) as err:
        return UNREADABLE.name, _unreadable(delivery, time, err)
    if format_ == "jsonl":
        return EVENTS.name, to_line(record)
    return EVENTS.name, _event(record, time)


def _value(delivery: Delivery, blobs: BlobStore) -> bytes:
    """The record's own value, or what its claim check names."""
    if delivery.value is None:
        raise MalformedEvent("the record has no value")
    reference = next((data for name, data in delivery.headers if name == "ce_dataref"), None)
    return delivery.value if reference is None else blobs.get(reference.decode("utf-8", errors="replace"))


def _event(record: LogRecord, time: datetime) -> Row:
    attributes = attributes_of(record.headers)
    strict = is_strict_json(record.value)
    row: Row = {name: attributes.pop(name, None) for name in _NAMED}
    attributes |= {f"header:{name}": data for name, data in other_headers(record.headers)}
    return row | {
        "attributes": attributes or None,
        "data": record.value.decode("utf-8") if strict else None,
        "data_binary": None if strict else record.value,
        **_place(record.topic, record.partition, record.offset, time),
    }


def _unreadable(delivery: Delivery, time: datetime, error: Exception) -> Row:
    headers = [[name, base64.b64encode(data).decode("ascii")] for name, data in delivery.headers]
    return {
        "key": delivery.key,
        "headers": msgspec.json.encode(headers).decode("utf-8"),
        "value": delivery.value,
        "error": f"{type(error).__name__}: {error}",
        **_place(delivery.topic, delivery.partition, delivery.offset, time),
    }


def _place(topic: str, partition: int, offset: int, time: datetime) -> Row:
    return {"logtopic": topic, "logpartition": partition, "logoffset": offset, "logtime": time}
