"""Log files as bytes: plain, gzip or zstd alike, told by their first bytes, read as a stream.

Every importer opens its file here, so that compressed files need no code in any of them, and whoever runs an import
can watch how far it came.
"""

from __future__ import annotations

import codecs
import io
import logging
import zlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import zstandard

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_BUFFER = 1 << 18
"""Bytes asked of the disk at once. Below some 64 KiB system calls show; above, nothing is gained."""

_PIECE = 1 << 11
"""Compressed bytes that are unpacked at once. The most that 2 KiB can become, in zstd, is 64 MiB."""

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


class watched_by:
    """Inside, `watcher` hears of every read of a file that was opened with `open_log`."""

    def __init__(self, watcher: Watcher) -> None:
        self._who = watcher

    def __enter__(self) -> None:
        self._token = _watcher.set(self._who)

    def __exit__(self, *fault: object) -> None:
        _watcher.reset(self._token)


def open_log(path: Path) -> BinaryIO:
    """The file's content, decompressed while it is read. Close it, or use it in `with`.

    A compressed file that is damaged ends where the damage is, and the watcher is told: readers then refuse the row
    that breaks off, and keep those before it.

    Raises:
        OSError: the file cannot be opened.
    """
    raw = io.BufferedReader(cast(io.RawIOBase, _Watched(path)), _BUFFER)
    start = raw.peek(len(_ZSTD))
    unpacker: Callable[[], _Unpacker]
    if start.startswith(_GZIP):
        unpacker = partial(zlib.decompressobj, wbits=16 + zlib.MAX_WBITS)
    elif start.startswith(_ZSTD):
        unpacker = zstandard.ZstdDecompressor().decompressobj
    else:
        return cast(BinaryIO, raw)
    return cast(BinaryIO, io.BufferedReader(_Unpacked(path, cast(BinaryIO, raw), unpacker), _BUFFER))


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


class _Unpacker(Protocol):
    """What zlib and zstandard have in common: one compressed part of a file, fed piece by piece."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class _Unpacked(io.RawIOBase):
    """The content of a compressed file of one part or several; ends at a fault, and tells it."""

    def __init__(self, path: Path, packed: BinaryIO, unpacker: Callable[[], _Unpacker]) -> None:
        self._path, self._packed, self._new = path, packed, unpacker
        self._unpacker = unpacker()
        self._begun, self._over = False, False
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        while not self._ready and not self._over:
            self._ready = memoryview(self._next())
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _next(self) -> bytes:
        rest = self._unpacker.unused_data if self._unpacker.eof else b""
        if self._unpacker.eof:
            self._unpacker, self._begun = self._new(), False
        if not self._begun:
            rest = rest.lstrip(b"\0")  # what some tools pad a file with
        data = rest or self._packed.read(_PIECE)
        if not data:
            self._over = True
            if self._begun:
                self._tell("it breaks off")
            return b""
        self._begun = True
        try:
            return self._unpacker.decompress(data)
        except (zlib.error, zstandard.ZstdError) as err:
            self._over = True
            self._tell(str(err))
            return b""

    def _tell(self, fault: str) -> None:
        reason = f"the compressed file breaks off or is damaged: {fault}"
        watcher = _watcher.get()
        if watcher is None:
            log.warning("%s: %s", self._path, reason)
        else:
            watcher.damaged(self._path, reason)

    def close(self) -> None:
        if not self.closed:
            self._packed.close()
        super().close()
