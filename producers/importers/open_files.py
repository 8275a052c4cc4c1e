"""Log files as bytes: plain, gzip or zstd alike, told by their first bytes, read as a stream.

Every importer opens its file here, so that compressed files need no code in any of them, and whoever runs an import
can watch how far it came.
"""

from __future__ import annotations

import codecs
import gzip
import io
import logging
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import zstandard

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_BUFFER = 1 << 18
"""Bytes asked of the disk at once. Below some 64 KiB system calls show; above, nothing is gained."""

log = logging.getLogger(__name__)


class Watcher(Protocol):
    """Who wants to know how files are read."""

    def read(self, count: int) -> None:
        """`count` more bytes of the file itself were read, compressed where it is."""
        ...

    def damaged(self, path: Path, reason: str) -> None:
        """The compressed file breaks off or is damaged. What came before it was read; to the reader the file ends."""
        ...


_watcher: ContextVar[Watcher | None] = ContextVar("_watcher", default=None)


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Inside, `watcher` hears of every read of a file that was opened with `open_log`."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def open_log(path: Path) -> BinaryIO:
    """The file's content, decompressed while it is read. Close it, or use it in `with`.

    A compressed file that is damaged ends where the damage is, and the watcher is told: readers then refuse the row
    that breaks off, and keep those before it.

    Raises:
        OSError: the file cannot be opened.
    """
    raw = cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, _Watched(path)), _BUFFER))
    start = cast(io.BufferedReader, raw).peek(len(_ZSTD))
    if start.startswith(_GZIP):
        return cast(BinaryIO, io.BufferedReader(_Checked(path, gzip.GzipFile(fileobj=raw), raw), _BUFFER))
    if start.startswith(_ZSTD):
        reader = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True, closefd=False)
        return cast(BinaryIO, io.BufferedReader(_Checked(path, cast(BinaryIO, reader), raw), _BUFFER))
    return raw


@dataclass(frozen=True)
class Line:
    """One line: its 1-based number and its bytes without the line's end."""

    number: int
    data: bytes


def lines_of(path: Path) -> Iterator[Line]:
    """The lines of the file that are not blank, one in memory at a time; a byte order mark is left out.

    Raises:
        OSError: the file cannot be opened.
    """
    with open_log(path) as file:
        for number, line in enumerate(file, start=1):
            data = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if data and not data.isspace():
                yield Line(number, data.rstrip(b"\r\n"))


class _Watched(io.FileIO):
    def __init__(self, path: Path) -> None:
        super().__init__(path, "rb")

    def readinto(self, buffer: bytearray) -> int | None:  # type: ignore[override]
        return self._seen(super().readinto(buffer))

    def readall(self) -> bytes:
        data = super().readall() or b""
        self._seen(len(data))
        return data

    def _seen(self, count: int | None) -> int | None:
        watcher = _watcher.get()
        if watcher is not None and count:
            watcher.read(count)
        return count


class _Checked(io.RawIOBase):
    """A decompressing stream that ends at a fault, and tells it."""

    def __init__(self, path: Path, stream: BinaryIO | gzip.GzipFile, below: BinaryIO) -> None:
        self._path, self._stream, self._below = path, stream, below

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        try:
            data = self._stream.read(len(buffer))
        except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as err:
            self._tell(f"the compressed file breaks off or is damaged: {err}")
            return 0
        buffer[: len(data)] = data
        return len(data)

    def _tell(self, reason: str) -> None:
        watcher = _watcher.get()
        if watcher is None:
            log.warning("%s: %s", self._path, reason)
        else:
            watcher.damaged(self._path, reason)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
            self._below.close()
        super().close()
