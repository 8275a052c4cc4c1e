"""OpenHands histories of the time before its SDK: a JSON list of events, or lines {instance_id, history, test_result}.

What is read, how turns and next states are made and what is refused: docs/importers/openhands_history.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from producers.importers.base import RefusedRow, Row, Unreadable, session_id_of
from producers.importers.detect import Head, head_of
from producers.importers.json_scan import Broken, Item, excerpt_of, json_type, read_text, scan_list, scan_object
from producers.importers.jsonl import rows_of, split_rows, values_of
from producers.importers.openhands_past import History
from producers.importers.transcript import Transcript

NAME = "openhands-history"
SOURCE = "hindstream/import/openhands-history"


def sniff(head: Head) -> bool:
    """See `producers.importers.base.Importer.sniff`: a list of events with `action` or `observation`, or rows with such
    a list as `history`."""
    if isinstance(head.value, list):
        return any(_is_event(event) for event in head.value)
    history = head.object.get("history")
    return isinstance(history, list) and any(_is_event(event) for event in _flat(history))


def read(path: Path) -> Iterator[Row]:
    """See `producers.importers.base.Importer.read`. The line of a turn is that of its event; in a file of histories,
    that of its history."""
    head = head_of(path)
    if isinstance(head.value, list):
        rows, refused = split_rows(path.name, _flat_items(scan_list(read_text(path))))
        yield from _session(path.name, rows, refused, {}, {"history": values_of(rows)})
        return
    first: dict[str, int] = {}
    item: Item | Broken | None = None
    for item in _histories(path, head):
        if isinstance(item, Broken):
            yield RefusedRow(path.name, item.line, item.reason, item.excerpt)
            continue
        history = item.value.get("history") if isinstance(item.value, dict) else None
        if not isinstance(history, list):
            reason = f"a JSON {json_type(item.value)} without a list `history`"
            yield RefusedRow(path.name, item.line, reason, excerpt_of(item.value))
            continue
        rows, refused = split_rows(path.name, [Item(event, item.line) for event in _flat(history)])
        rest = {key: value for key, value in item.value.items() if key != "history"}
        yield from _session(path.name, rows, refused, rest, rest | {"history": values_of(rows)}, first)
    if item is None:
        yield RefusedRow(path.name, 1, "the file is empty", "")


def _histories(path: Path, head: Head) -> Iterator[Item | Broken]:
    """One history a line, or one object over many lines."""
    if head.lines or "\n" not in head.text.strip():
        yield from rows_of(path)
        return
    scanned = scan_object(read_text(path), frozenset({"history"}))
    yield from scanned.broken
    yield Item({name: found.readable() for name, found in scanned.fields.items()}, 1)


def _session(
    file: str,
    rows: list[Item | Broken],
    refused: list[RefusedRow],
    around: dict[str, Any],
    content: dict[str, Any],
    first: dict[str, int] | None = None,
) -> Iterator[Row]:
    line = rows[0].line if rows else 1
    try:
        session_id = session_id_of(SOURCE, content)
        if first is not None and first.setdefault(session_id, line) != line:
            raise Unreadable(f"repeats the history at line {first[session_id]} word for word, which is in")
    except Unreadable as err:
        yield RefusedRow(file, line, str(err), "")
        return
    transcript = Transcript(source=SOURCE, session_id=session_id, format_name=NAME, file=file)
    history = History(rows, transcript, file, around)
    refused += history.take()
    if not transcript.turns and not refused:
        refused = [RefusedRow(file, line, "no event is an answer of the agent, so there is no turn", "")]
    yield from sorted(refused, key=lambda row: row.line)
    yield from transcript.events(line)


def _is_event(event: Any) -> bool:
    if not isinstance(event, dict) or "source" not in event:
        return False
    return isinstance(event.get("action"), str) or isinstance(event.get("observation"), str)


def _flat(history: list[Any]) -> list[Any]:
    """Events, also where they stand in pairs of action and observation."""
    return [event for entry in history for event in (entry if isinstance(entry, list) else [entry])]


def _flat_items(found: Iterator[Item | Broken]) -> Iterator[Item | Broken]:
    for item in found:
        if isinstance(item, Item) and isinstance(item.value, list):
            yield from (Item(event, item.line) for event in item.value)
        else:
            yield item
