"""Records that wait on disk while the broker is away, in order, whatever happens to the process.

The spool is a directory of segments, each a file of JSON lines. A record is in it when `append` has returned: then it
is synced. It leaves it only after the broker's acknowledgement, so a crash may send one twice, which changes nothing
downstream, and never loses one.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from schemas.envelope import WireRecord

_SEGMENT_BYTES = 16 << 20
"""A segment that is sent is deleted whole: this much is held in memory and at most sent again after a crash."""


class SpoolFull(RuntimeError):
    """The spool has reached its bound; the records were not kept."""


class SpoolInUse(RuntimeError):
    """Another process has this spool."""


class Spool:
    """A bounded queue of records on disk. One process a directory; thread-safe within it.

    Args:
        directory: made if missing.
        max_bytes: the most that all segments may hold.

    Raises:
        SpoolInUse: another process has it open.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self.directory = directory
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._current: BinaryIO | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self._held = (directory / "lock").open("wb")
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._held.close()
            raise SpoolInUse(f"another gateway has the spool {directory}; give each a home of its own") from None
        self._segments = {path: path.stat().st_size for path in sorted(directory.glob("*.jsonl"))}
        self._next = 1 + max((int(path.stem) for path in self._segments), default=0)

    @property
    def bytes(self) -> int:
        """Bytes on disk that wait."""
        with self._lock:
            return sum(self._segments.values())

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        with self._lock:
            return not self._segments

    def append(self, records: Sequence[WireRecord]) -> None:
        """Put `records` at the end, all or none; they are on the disk when this returns.

        Raises:
            SpoolFull: they would not fit.
            OSError: the disk refused.
        """
        data = b"".join(_line(record) for record in records)
        with self._lock:
            if sum(self._segments.values()) + len(data) > self._max_bytes:
                raise SpoolFull(f"the spool {self.directory} has reached {self._max_bytes} bytes")
            path, file = self._open()
            size = self._segments[path]
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                self._abandon(path, size)
                raise
            self._segments[path] = size + len(data)

    def oldest(self) -> tuple[Path, list[WireRecord] | None] | None:
        """The segment that is to be sent first and its records (None: the file is damaged); None where nothing waits.
        Nothing more is appended to it."""
        with self._lock:
            if not self._segments:
                return None
            path = next(iter(self._segments))
            if self._current is not None and Path(self._current.name) == path:
                self._close_current()
            size = self._segments[path]
        with path.open("rb") as file:
            data = file.read(size)
        try:
            return path, _records(data)
        except (ValueError, KeyError, TypeError):
            return path, None

    def remove(self, segment: Path) -> None:
        """Forget a segment: all its records were acknowledged."""
        with self._lock:
            segment.unlink()
            del self._segments[segment]

    def set_aside(self, segment: Path) -> None:
        """Keep a damaged segment's file under another name, and forget it."""
        with self._lock:
            segment.rename(segment.with_suffix(".damaged"))
            del self._segments[segment]

    def keep_refused(self, record: WireRecord) -> None:
        """Keep a record that the broker will never take in the file `refused`, in the form that segments have."""
        with (self.directory / "refused").open("ab") as file:
            file.write(_line(record))
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Let another process have it; what waits stays."""
        with self._lock:
            self._close_current()
            self._held.close()

    def _open(self) -> tuple[Path, BinaryIO]:
        if self._current is not None and self._segments[Path(self._current.name)] >= _SEGMENT_BYTES:
            self._close_current()
        if self._current is None:
            path = self.directory / f"{self._next:012d}.jsonl"
            self._current = path.open("ab")
            self._next += 1
            self._segments[path] = 0
            _sync_directory(self.directory)
        return Path(self._current.name), self._current

    def _abandon(self, path: Path, size: int) -> None:
        """After a failed write: the segment ends where it was whole, and gets nothing more."""
        current, self._current = self._current, None
        if current is not None:
            # Not close(): that would try to write the buffer again, behind the cut.
            os.truncate(path, size)
            current.detach().close()  # type: ignore[attr-defined]
        if size == 0:
            path.unlink()
            del self._segments[path]

    def _close_current(self) -> None:
        if self._current is not None:
            self._current.close()
            self._current = None


def _line(record: WireRecord) -> bytes:
    plain = {
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(data)] for name, data in record.headers],
    }
    return json.dumps(plain).encode("ascii") + b"\n"


def _records(data: bytes) -> list[WireRecord]:
    """The whole lines; a last line without its end was cut by a crash before anyone was told that it is kept."""
    whole = data[: data.rfind(b"\n") + 1]
    return [_record(json.loads(line)) for line in whole.splitlines()]


def _record(plain: dict[str, object]) -> WireRecord:
    headers = plain["headers"]
    assert isinstance(headers, list)
    return WireRecord(
        key=base64.b64decode(str(plain["key"])),
        value=base64.b64decode(str(plain["value"])),
        headers=[(name, base64.b64decode(data)) for name, data in headers],
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
