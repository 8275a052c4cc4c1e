"""Hindstream's own archive as JSON lines (`hindstream export --format jsonl`): one event of the log a line.

Each line is a CloudEvent in JSON format. Its event goes onto the log again as it was: same ids, same data, same times;
only its place on the log is a new one. Lines from any other producer that writes our event types so are read too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from producers.importers.base import RefusedRow, Row
from producers.importers.detect import Head
from producers.importers.json_scan import excerpt_of
from producers.importers.open_files import lines_of
from schemas.envelope import MalformedEvent
from schemas.events import EVENT_TYPES
from schemas.structured import from_line

NAME = "hindstream-jsonl"
SOURCE = "hindstream"
"""Not used: every event keeps the source that it has."""

COMPANIONS = ("manifest.json", "schema.json", "unreadable/date=*/part-*", "derived/*/date=*/part-*")
"""What else lies in an archive: its description, what could not be read, and derived rows, which are made anew."""


def sniff(head: Head) -> bool:
    """See `producers.importers.base.Importer.sniff`: an object with the attributes of one of our events."""
    first = head.object if isinstance(head.value, dict) else {}
    return "specversion" in first and first.get("type") in EVENT_TYPES and ("data" in first or "data_base64" in first)


def read(path: Path) -> Iterator[Row]:
    """See `producers.importers.base.Importer.read`."""
    for line in lines_of(path):
        try:
            yield from_line(line.data)
        except MalformedEvent as err:
            text = line.data[:200].decode("utf-8", errors="replace")
            yield RefusedRow(path.name, line.number, str(err), excerpt_of(text)[1:-1])
