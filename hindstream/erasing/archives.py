"""Erased sessions in archives of `hindstream export`: which files hold them, and those files without them.

A file with such rows is written again under a new name. Then one rename puts the manifest that names the new files in
the old one's place, and the old files are deleted. Killed anywhere, the archive is whole, and the next try deletes what
its manifest does not name.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from hindstream.export.archive import MANIFEST, dump, sync
from hindstream.export.layout import EVENTS, UNREADABLE
from hindstream.export.reading import ArchiveReader
from hindstream.export.values import Row, iso
from schemas.events import SESSION_CLOSED

_PARTS = "part-*"
_ANSWERS = "model_answers"


@dataclass
class Erased:
    """What is erased: sessions, their turns, and the answers of models about them."""

    sessions: frozenset[str]
    turns: set[str] = field(default_factory=set)
    answers: set[str] = field(default_factory=set)

    def holds(self, table: str, row: Row) -> bool:
        """Whether a row is about them. Events that say so stay: an import of the archive must hear of it."""
        if table == EVENTS.name:
            return row.get("partitionkey") in self.sessions and not _is_tombstone(row)
        if table == UNREADABLE.name:
            return (row["key"] or b"").decode("utf-8", "replace") in self.sessions
        if table == _ANSWERS and row["answer_digest"] in self.answers:
            return True
        return row.get("session_id") in self.sessions or row.get("turn_id") in self.turns

    def learn(self, table: str, row: Row) -> None:
        """Take up the ids by which rows of other tables are known; `row` is one that it holds."""
        if row.get("turn_id") is not None and row.get("session_id") in self.sessions:
            self.turns.add(row["turn_id"])
        if table == EVENTS.name and str(row.get("type")).startswith("hindstream.turn."):
            self.turns.add(str(row.get("subject")))
        if row.get("answer_digest") is not None:
            self.answers.add(row["answer_digest"])


def files_with(reader: ArchiveReader, erased: Erased) -> dict[str, int]:
    """Rows by file, of the files that hold any. `erased` learns further ids from them."""
    for table in (EVENTS.name, "samples", "votes", "teacher_scores"):
        if table in reader.manifest["tables"]:
            for row in reader.rows(table):
                if erased.holds(table, row):
                    erased.learn(table, row)
    found: dict[str, int] = {}
    for table in reader.manifest["tables"]:
        for file, rows in _rows_by_file(reader, table):
            if count := sum(erased.holds(table, row) for row in rows):
                found[file] = count
    return found


def rewrite(reader: ArchiveReader, erased: Erased, after: Callable[[str], None] = lambda step: None) -> dict[str, int]:
    """Take the rows out of the archive; returns rows by file, as they were. `after` is told each step that is done.

    Raises:
        OSError: the archive cannot be written; it is as it was.
    """
    _delete_leftovers(reader)
    found = files_with(reader, erased)
    if not found:
        return {}
    manifest = json.loads(json.dumps(reader.manifest))
    for name, table in manifest["tables"].items():
        files = []
        for file in table["files"]:
            if file["path"] in found:
                part = _without(reader, name, file["path"], erased)
                files += [part] if part["rows"] else []
            else:
                files.append(file)
        table |= {"files": files, "rows": sum(file["rows"] for file in files)}
    manifest["erased_at"] = iso(datetime.now(UTC))
    after("written")
    _replace(reader.root / MANIFEST, manifest)
    after("renamed")
    reader.manifest = manifest
    _delete_leftovers(reader)
    return found


def _rows_by_file(reader: ArchiveReader, table: str) -> Iterator[tuple[str, Iterator[Row]]]:
    for file in reader.manifest["tables"][table]["files"]:
        yield file["path"], reader.rows_of(table, file["path"])


def _without(reader: ArchiveReader, table: str, path: str, erased: Erased) -> dict[str, Any]:
    """A new file beside `path` with the rows that stay; what the manifest says of it."""
    old = reader.root / path
    stem = old.name.partition(".")[0]
    new = old.with_name(f"{stem}-{secrets.token_hex(4)}{old.name.removeprefix(stem)}")
    stays = [not erased.holds(table, row) for row in reader.rows_of(table, path)]
    if old.suffix == ".parquet":
        _copy_parquet(old, new, stays)
    else:
        _copy_lines(old, new, stays)
    with new.open("rb") as written:
        os.fsync(written.fileno())
        digest = hashlib.file_digest(written, "sha256").hexdigest()
    relative = str(new.relative_to(reader.root))
    return {"path": relative, "rows": sum(stays), "bytes": new.stat().st_size, "sha256": digest}


def _copy_parquet(old: Path, new: Path, stays: list[bool]) -> None:
    start = 0
    with pq.ParquetFile(old) as file, pq.ParquetWriter(new, file.schema_arrow, compression="zstd") as writer:
        for batch in file.iter_batches(batch_size=1024):
            kept = batch.filter(pa.array(stays[start : start + batch.num_rows]))
            start += batch.num_rows
            if kept.num_rows:
                writer.write_batch(kept)


def _copy_lines(old: Path, new: Path, stays: list[bool]) -> None:
    with (
        old.open("rb") as source,
        zstandard.ZstdDecompressor().stream_reader(source) as lines,
        new.open("wb") as target,
        zstandard.ZstdCompressor().stream_writer(target) as writer,
    ):
        for line, stay in zip(io.BufferedReader(lines), stays, strict=True):
            if stay:
                writer.write(line)


def _delete_leftovers(reader: ArchiveReader) -> None:
    """What an earlier try wrote and did not name, or named no longer and did not delete."""
    named = {file["path"] for table in reader.manifest["tables"].values() for file in table["files"]}
    for path in reader.root.rglob(_PARTS):
        if path.is_file() and str(path.relative_to(reader.root)) not in named:
            path.unlink()


def _replace(path: Path, document: dict[str, Any]) -> None:
    temporary = path.with_name(path.name + ".partial")
    dump(temporary, document)
    os.replace(temporary, path)
    sync(path.parent)


def _is_tombstone(row: Row) -> bool:
    if row.get("type") != SESSION_CLOSED:
        return False
    data = row.get("data")
    plain = msgspec.json.decode(data) if isinstance(data, str) else data
    return isinstance(plain, dict) and plain.get("reason") == "erased"
