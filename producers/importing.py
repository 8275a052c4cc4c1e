"""A log file onto `agent-events`: read by an importer, published in chunks, each acknowledged before the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from producers.importers.base import Importer, RefusedRow
from producers.importers.open_files import watched_by
from schemas.claim_check import BlobStore
from schemas.encoded_once import EncodedOnce
from schemas.envelope import Event, WireRecord, encode, utc_now
from schemas.events import FeedbackGiven, NextStateObserved, SessionClosed, TurnRecorded
from schemas.publish import Position, PublishFailed
from schemas.topics import AGENT_EVENTS

CHUNK_RECORDS = 256
"""Events sent before waiting for acknowledgements. One round trip costs milliseconds, so more gains nothing, and
what a failed import has to say ("N acknowledged") stays exact to this many."""

CHUNK_BYTES = 4 << 20
"""The same bound in bytes, so that a chunk of long conversations does not fill the producer's memory."""

REFUSED_KEPT = 200
"""Refused rows that a report holds: more than anybody reads, and little memory where every row of a file of gigabytes
is refused. All of them go to `on_refused`."""


@dataclass(frozen=True)
class Progress:
    """How far the import of one file is: bytes of the file read (compressed, where it is), events on the log (counted,
    where nothing is published), and rows refused."""

    bytes_read: int
    events: int
    refused: int


OnProgress = Callable[[Progress], None]
OnRefused = Callable[[RefusedRow], None]


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
    """What one file gave. `next_states` counts by kind, `verdicts` those of them that carry a verdict. `refused` holds
    the first `REFUSED_KEPT` of `refused_rows` rows."""

    file: str
    format: str
    events: int
    sessions: int
    turns: int
    next_states: Mapping[str, int]
    verdicts: int
    feedback: int
    refused_rows: int
    refused: tuple[RefusedRow, ...]


def survey_file(
    importer: Importer, path: Path, on_progress: OnProgress | None = None, on_refused: OnRefused | None = None
) -> ImportReport:
    """Read the file and publish nothing: what an import of it would give.

    Raises:
        OSError: the file cannot be opened.
    """
    tally = _Tally(importer, path, on_refused)
    for _ in tally.events():
        if on_progress is not None and tally.count % CHUNK_RECORDS == 0:
            on_progress(tally.progress(tally.count))
    if on_progress is not None:
        on_progress(tally.progress(tally.count))
    return tally.report()


def import_file(
    importer: Importer,
    path: Path,
    publisher: Publisher,
    blobs: BlobStore,
    on_progress: OnProgress | None = None,
    on_refused: OnRefused | None = None,
) -> ImportReport:
    """Read the file and publish its events; blocks, so call it from a thread where there is an event loop.

    Returns only after the broker acknowledged every event. Ids come from the content, so a second import of the same
    file adds nothing to what the first recorded, wherever that one was interrupted.

    Raises:
        OSError: the file cannot be opened.
        ImportFailed: the broker did not acknowledge; the message says how far it came.
    """
    tally, published = _Tally(importer, path, on_refused), 0
    for chunk in chunks(tally.events(), blobs):
        try:
            publisher.publish(AGENT_EVENTS, chunk)
        except PublishFailed as err:
            raise ImportFailed(
                f"{path}: {published} events are on the log, then: {err}; run the import again once the broker is "
                "back: what is there already is not added twice"
            ) from err
        published += len(chunk)
        if on_progress is not None:
            on_progress(tally.progress(published))
    return tally.report()


def chunks(events: Iterator[Event], blobs: BlobStore) -> Iterator[list[WireRecord]]:
    """The events as records, some at a time; stamped with the time of now, unless an archive of ours kept theirs."""
    chunk, size, now, once = list[WireRecord](), 0, utc_now(), EncodedOnce()
    for event in events:
        record = encode(event, blobs, recorded_time=now, once=once)
        chunk.append(record)
        size += len(record.value)
        if len(chunk) >= CHUNK_RECORDS or size >= CHUNK_BYTES:
            yield chunk
            chunk, size, now = [], 0, utc_now()
    if chunk:
        yield chunk


class _Tally:
    """Counts what passes through, and hears how the file is read."""

    def __init__(self, importer: Importer, path: Path, on_refused: OnRefused | None) -> None:
        self.importer, self.path, self.on_refused = importer, path, on_refused
        self.turns = self.sessions = self.verdicts = self.feedback = 0
        self.kinds = Counter[str]()
        self.refused: list[RefusedRow] = []
        self.refused_rows = self.bytes_read = self.count = 0
        self.damage: str | None = None

    def read(self, count: int) -> None:
        """See `producers.importers.open_files.Watcher`."""
        self.bytes_read += count

    def damaged(self, path: Path, reason: str) -> None:
        """See `producers.importers.open_files.Watcher`."""
        self.damage = reason

    def events(self) -> Iterator[Event]:
        rows, last_line = self.importer.read(self.path), 1
        while True:
            with watched_by(self):  # around each step only: between two, the caller's own files are its own
                row = next(rows, None)
            if row is None:
                break
            if isinstance(row, RefusedRow):
                last_line = row.line
                self._refuse(row)
                continue
            self.count += 1
            data = row.data
            self.turns += isinstance(data, TurnRecorded)
            self.sessions += isinstance(data, SessionClosed)
            self.feedback += isinstance(data, FeedbackGiven)
            if isinstance(data, NextStateObserved):
                self.kinds[data.kind] += 1
                self.verdicts += data.verdict is not None
            yield row
        if self.damage is not None:
            # Put first, so that it is among those that are kept: it explains the others.
            self._refuse(
                RefusedRow(self.path.name, last_line, f"{self.damage}; what came before is in", ""), first=True
            )

    def progress(self, events: int) -> Progress:
        return Progress(self.bytes_read, events, self.refused_rows)

    def report(self) -> ImportReport:
        return ImportReport(
            file=self.path.name,
            format=self.importer.NAME,
            events=self.count,
            sessions=self.sessions,
            turns=self.turns,
            next_states=dict(self.kinds),
            verdicts=self.verdicts,
            feedback=self.feedback,
            refused_rows=self.refused_rows,
            refused=tuple(self.refused),
        )

    def _refuse(self, row: RefusedRow, *, first: bool = False) -> None:
        self.refused_rows += 1
        if first:
            self.refused.insert(0, row)
        elif len(self.refused) < REFUSED_KEPT:
            self.refused.append(row)
        if self.on_refused is not None:
            self.on_refused(row)
