"""Reading an archive back: rows as they were, and whether every file is what the manifest says."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import zstandard

from hindstream.errors import UserError
from hindstream.export.archive import LAYOUT_VERSION, MANIFEST, SCHEMA
from hindstream.export.layout import TableSpec, specs_of
from hindstream.export.values import Row, from_arrow, from_json


class ArchiveReader:
    """An archive on disk.

    Args:
        root: its directory.

    Raises:
        UserError: there is no archive, or one of a later layout.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            self.manifest: dict[str, Any] = json.loads((root / MANIFEST).read_bytes())
            schema = json.loads((root / SCHEMA).read_bytes())
            self.specs: dict[str, TableSpec] = specs_of(schema)
            layout = self.manifest["layout"]
        except (OSError, ValueError, KeyError, TypeError) as err:
            raise UserError(f"{root} is no archive: {type(err).__name__}: {err}") from None
        if layout != LAYOUT_VERSION:
            raise UserError(f"{root} is an archive of layout {layout}; this version reads {LAYOUT_VERSION}")

    def rows(self, table: str) -> Iterator[Row]:
        """The rows of a table, in the order in which they were written within each date; see `values.Row`. Of events in
        JSON lines, the fields of the line.

        Raises:
            KeyError: the archive has no such table.
            ValueError: a file is not what the schema says.
        """
        for file in self.manifest["tables"][table]["files"]:
            yield from self.rows_of(table, file["path"])

    def rows_of(self, table: str, file: str) -> Iterator[Row]:
        """The rows of one file of a table; `file` as the manifest names it."""
        path, spec = self.root / file, self.specs[table]
        yield from _parquet(path, spec) if path.suffix == ".parquet" else _json_lines(path, spec)

    def faults(self) -> Iterator[str]:
        """What is wrong with its files: missing, changed, or none of the archive's."""
        known = {MANIFEST, SCHEMA}
        for table in self.manifest["tables"].values():
            for file in table["files"]:
                known.add(file["path"])
                path = self.root / file["path"]
                if not path.is_file():
                    yield f"{file['path']} is missing"
                    continue
                with path.open("rb") as opened:
                    if hashlib.file_digest(opened, "sha256").hexdigest() != file["sha256"]:
                        yield f"{file['path']} was changed: its content has another SHA-256"
        there = {str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()}
        yield from (f"{path} is no file of the archive" for path in sorted(there - known))


def _json_lines(path: Path, spec: TableSpec) -> Iterator[Row]:
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
        for line in io.BufferedReader(stream):
            if spec.name == "events":
                yield msgspec.json.decode(line, type=dict[str, Any])
            else:
                yield from_json(spec, msgspec.json.decode(line, type=dict[str, msgspec.Raw]))


def _parquet(path: Path, spec: TableSpec) -> Iterator[Row]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=1024):
            yield from (from_arrow(spec, row) for row in batch.to_pylist())
