"""A table of an archive on disk: rows by date into part files, each of bounded size, with its checksum at the end."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from hindstream.export.layout import SUFFIX, Format, TableSpec
from hindstream.export.values import Row, arrow_schema, json_line

PART_BYTES = 256 << 20
"""Bytes of rows, before compression, after which a part is ended: one part is read in seconds and sent again in one."""
_GROUP_BYTES = 16 << 20
_GROUP_ROWS = 8192
"""Rows held before they are written as one group of a Parquet file: what writing and reading one takes in memory."""
_OPEN = 8
"""Dates with a part open at once. Rows come in the order of time, so two are enough but for a clock that was set."""


@dataclass(frozen=True)
class Part:
    """One file: its path relative to the archive, rows, size and SHA-256."""

    path: str
    rows: int
    bytes: int
    sha256: str


class _File(Protocol):
    size: int

    def write(self, row: Row | bytes) -> None: ...

    def close(self) -> None: ...


class TableWriter:
    """Writes the rows of one table below `root`; `close` gives what was written."""

    def __init__(self, root: Path, spec: TableSpec, format_: Format) -> None:
        self.spec, self._root, self._format = spec, root, format_
        self._open: dict[str, tuple[Path, _File, int]] = {}
        self._numbers = Counter[str]()
        self._parts: list[Part] = []

    def write(self, date: str, row: Row | bytes) -> None:
        """Add a row under `date` (YYYY-MM-DD, or `none`); bytes are a line of JSON, made by the caller."""
        path, file, rows = self._open.pop(date) if date in self._open else self._begin(date)
        file.write(row)
        self._open[date] = (path, file, rows + 1)
        if file.size >= PART_BYTES:
            self._end(date)
        elif len(self._open) > _OPEN:
            self._end(next(iter(self._open)))

    def close(self) -> list[Part]:
        """End every part; returns all of them by path."""
        for date in list(self._open):
            self._end(date)
        return sorted(self._parts, key=lambda part: part.path)

    def abandon(self) -> None:
        """Close the files without a word about them."""
        for _, file, _ in self._open.values():
            file.close()
        self._open.clear()

    def _begin(self, date: str) -> tuple[Path, _File, int]:
        path = (
            self._root / self.spec.directory / f"date={date}" / f"part-{self._numbers[date]:05}{SUFFIX[self._format]}"
        )
        self._numbers[date] += 1
        path.parent.mkdir(parents=True, exist_ok=True)
        file: _File = _JsonLines(path, self.spec) if self._format == "jsonl" else _Parquet(path, self.spec)
        return path, file, 0

    def _end(self, date: str) -> None:
        path, file, rows = self._open.pop(date)
        file.close()
        with path.open("rb") as written:
            os.fsync(written.fileno())
            digest = hashlib.file_digest(written, "sha256").hexdigest()
        self._parts.append(Part(str(path.relative_to(self._root)), rows, path.stat().st_size, digest))


class _JsonLines:
    def __init__(self, path: Path, spec: TableSpec) -> None:
        self._spec, self.size = spec, 0
        self._file = path.open("wb")
        self._stream = zstandard.ZstdCompressor().stream_writer(self._file)

    def write(self, row: Row | bytes) -> None:
        line = row if isinstance(row, bytes) else json_line(self._spec, row)
        self.size += len(line) + 1
        self._stream.write(line + b"\n")

    def close(self) -> None:
        with self._file:
            self._stream.close()  # type: ignore[no-untyped-call]


class _Parquet:
    def __init__(self, path: Path, spec: TableSpec) -> None:
        self._schema = arrow_schema(spec)
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[Row] = []
        self._held = self.size = 0

    def write(self, row: Row | bytes) -> None:
        if isinstance(row, bytes):
            raise TypeError("a line of JSON is no row of a Parquet file")
        self._rows.append(row)
        size = sum(len(value) if isinstance(value, str | bytes) else 8 for value in row.values())
        self._held += size
        self.size += size
        if self._held >= _GROUP_BYTES or len(self._rows) >= _GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
        self._rows, self._held = [], 0
