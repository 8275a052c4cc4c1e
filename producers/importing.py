"""A log file onto `agent-events`: read by an importer, published in chunks, each acknowledged before the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from producers.importers.base import Importer, RefusedRow
from schemas.claim_check import BlobStore
from schemas.envelope import Event, WireRecord, encode, utc_now
from schemas.events import NextStateObserved, SessionClosed, TurnRecorded
from schemas.publish import Position, PublishFailed
from schemas.topics import AGENT_EVENTS

CHUNK_RECORDS = 256
"""Events sent before waiting for acknowledgements. One round trip costs milliseconds, so more gains nothing, and
what a failed import has to say ("N acknowledged") stays exact to this many."""

CHUNK_BYTES = 4 << 20
"""The same bound in bytes, so that a chunk of long conversations does not fill the producer's memory."""

OnProgress = Callable[[int], None]
"""Told how many events are on the log so far."""


class ImportFailed(RuntimeError):
    """The broker went away during an import. What it acknowledged stays; the import can simply be run again."""


class Publisher(Protocol):
    """What an import needs of `schemas.publish.AckedPublisher`."""

    def publish(self, topic: str, records: list[WireRecord]) -> list[Position]:
        """Returns when every record is acknowledged.

        Raises:
            PublishFailed: one was not.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class ImportReport:
    """What one file gave. `next_states` counts by kind, `verdicts` those of them that carry a verdict."""

    file: str
    events: int
    sessions: int
    turns: int
    next_states: Mapping[str, int]
    verdicts: int
    refused: tuple[RefusedRow, ...]


def survey_file(importer: Importer, path: Path) -> ImportReport:
    """Read the file and publish nothing: what an import of it would give.

    Raises:
        OSError: the file cannot be opened.
    """
    tally = _Tally(path.name)
    for _ in tally.events(importer, path):
        pass
    return tally.report()


def import_file(
    importer: Importer,
    path: Path,
    publisher: Publisher,
    blobs: BlobStore,
    on_progress: OnProgress | None = None,
) -> ImportReport:
    """Read the file and publish its events; blocks, so call it from a thread where there is an event loop.

    Returns only after the broker acknowledged every event. Ids come from the content, so a second import of the same
    file adds nothing to what the first recorded.

    Raises:
        OSError: the file cannot be opened.
        ImportFailed: the broker did not acknowledge; the message says how far it came.
    """
    tally, chunk, size, published = _Tally(path.name), list[WireRecord](), 0, 0

    def flush() -> None:
        nonlocal size, published
        try:
            publisher.publish(AGENT_EVENTS, chunk)
        except PublishFailed as err:
            raise ImportFailed(
                f"{path}: {published} events are on the log, then: {err}; run the import again once the broker is "
                "back: what is there already is not added twice"
            ) from err
        published += len(chunk)
        chunk.clear()
        size = 0
        if on_progress is not None:
            on_progress(published)

    for event in tally.events(importer, path):
        record = encode(replace(event, recorded_time=utc_now()), blobs)
        chunk.append(record)
        size += len(record.value)
        if len(chunk) >= CHUNK_RECORDS or size >= CHUNK_BYTES:
            flush()
    if chunk:
        flush()
    return tally.report()


class _Tally:
    """Counts what passes through."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.turns = self.sessions = self.verdicts = 0
        self.kinds = Counter[str]()
        self.refused: list[RefusedRow] = []

    def events(self, importer: Importer, path: Path) -> Iterator[Event]:
        for row in importer.read(path):
            if isinstance(row, RefusedRow):
                self.refused.append(row)
                continue
            self.turns += isinstance(row.data, TurnRecorded)
            self.sessions += isinstance(row.data, SessionClosed)
            if isinstance(row.data, NextStateObserved):
                self.kinds[row.data.kind] += 1
                self.verdicts += row.data.verdict is not None
            yield row

    def report(self) -> ImportReport:
        return ImportReport(
            file=self.file,
            events=self.turns + self.sessions + self.kinds.total(),
            sessions=self.sessions,
            turns=self.turns,
            next_states=dict(self.kinds),
            verdicts=self.verdicts,
            refused=tuple(self.refused),
        )
