"""Files of any known format as a log to replay."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from processors.dead_letters import Delivery
from processors.replay.progress import Offsets
from processors.replay.selection import Selection
from producers.importers import RefusedRow
from producers.importers.finding import Found
from schemas.claim_check import BlobStore
from schemas.envelope import Event, encode

_READ_BYTES = 1 << 20


class FileLog:
    """The events of `files`, in the order given. Their offsets count events from 0, over all files.

    Args:
        files: each with the importer that reads it.
        blobs: where events over 1 MiB go.
        on_refused: told of each row that cannot be read, with its file, when the events are counted.
    """

    def __init__(
        self, files: Sequence[Found], blobs: BlobStore, on_refused: Callable[[Path, RefusedRow], None]
    ) -> None:
        self._files, self._blobs, self._on_refused = files, blobs, on_refused
        self.name = f"file:{_digest([found.path for found in files])}"

    def bounds(self, selection: Selection) -> tuple[Offsets, Offsets]:
        """From the first event to the last; reads the files once to count them.

        Raises:
            ValueError: a time or offsets are selected, which files do not have.
        """
        if selection.since or selection.until or selection.offsets:
            raise ValueError("since, until and offsets belong to the topic's log; files are replayed whole")
        return {0: 0}, {0: sum(1 for _ in self._events(self._on_refused))}

    def read(
        self, starts: Mapping[int, int], ends: Mapping[int, int], stop: threading.Event
    ) -> Iterator[tuple[Delivery, float]]:
        """The events as deliveries; their time is their source's, or 0 where it gave none."""
        for offset, event in enumerate(self._events(lambda path, row: None)):
            if stop.is_set() or offset >= ends[0]:
                return
            if offset >= starts[0]:
                record = encode(event, self._blobs)
                delivery = Delivery(self.name, 0, offset, record.key, list(record.headers), record.value)
                yield delivery, _seconds(event.time)

    def _events(self, on_refused: Callable[[Path, RefusedRow], None]) -> Iterator[Event]:
        for found in self._files:
            for row in found.importer.read(found.path):
                if isinstance(row, RefusedRow):
                    on_refused(found.path, row)
                else:
                    yield row


def _digest(paths: Sequence[Path]) -> str:
    """SHA-256 over the contents of the files, in order: the same files by other names are the same log."""
    whole = hashlib.sha256()
    for path in paths:
        one = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(_READ_BYTES):
                one.update(block)
        whole.update(one.digest())
    return whole.hexdigest()


def _seconds(time: str | None) -> float:
    try:
        moment = datetime.fromisoformat(time) if time else None
    except ValueError:
        moment = None
    if moment is None:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
