"""An archive: the log of facts and derived rows as files that stand by themselves, described, counted and checksummed.

It is written beside its place and renamed into it at the end, so what has the name is whole.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from hindstream.errors import UserError
from hindstream.export.database import RowFilter, count_rows, export_table
from hindstream.export.layout import EVENTS, UNREADABLE, Format, TableSpec, derived_tables, describe, sql_spec
from hindstream.export.log import LogExport, export_log
from hindstream.export.values import iso
from hindstream.export.writing import Part, TableWriter
from processors.replay.selection import Selection
from processors.replay.sources import TopicLog
from schemas.claim_check import BlobStore

MANIFEST, SCHEMA = "manifest.json", "schema.json"
LAYOUT_VERSION = 1
"""Of the files' names and the manifest; the columns are described in `schema.json`."""

OnProgress = Callable[[str, int, int], None]
"""Told the table, and how many of its rows or records were taken of how many."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to export. `log` is needed for facts, `engine` for derived rows; None leaves them out."""

    to: Path
    format: Format
    log: TopicLog | None
    engine: Engine | None
    blobs: BlobStore
    tables: frozenset[str] | None = None
    """Of the derived tables only these; None: all."""
    since: datetime | None = None
    until: datetime | None = None
    sessions: frozenset[str] | None = None
    erased: frozenset[str] = frozenset()
    """Of these sessions no record of the log goes in, but for the events that say that they are erased."""


@dataclass
class Archive:
    """What was written."""

    parts: dict[str, list[Part]] = field(default_factory=dict)
    log: LogExport | None = None

    def rows(self, table: str) -> int:
        """Rows of a table."""
        return sum(part.rows for part in self.parts[table])


def export_archive(plan: Plan, now: datetime, on_progress: OnProgress) -> Archive:
    """Write the archive. Whatever ends it early, nothing is left behind.

    Raises:
        UserError: there is something at its place already, or it cannot be written.
        LogAway, LogGone: see `export_log`.
        DBAPIError: the database failed.
    """
    if plan.to.exists() and (not plan.to.is_dir() or any(plan.to.iterdir())):
        raise UserError(
            f"{plan.to} is there already and not empty; choose another directory: an archive is never changed"
        )
    building = plan.to.with_name(plan.to.name + ".partial")
    try:
        shutil.rmtree(building, ignore_errors=True)  # what an export that was killed left
        building.mkdir(parents=True)
    except OSError as err:
        raise UserError(f"{building}: cannot be written ({err.strerror})") from None
    try:
        archive = _write(plan, building, now, on_progress)
        if plan.to.exists():
            plan.to.rmdir()
        os.replace(building, plan.to)
        sync(plan.to.parent)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return archive


def _write(plan: Plan, root: Path, now: datetime, on_progress: OnProgress) -> Archive:
    archive, specs = Archive(), list[TableSpec]()
    with ExitStack() as abandoned:

        def writer(spec: TableSpec) -> TableWriter:
            made = TableWriter(root, spec, plan.format)
            abandoned.callback(made.abandon)
            specs.append(spec)
            return made

        if plan.engine is not None:
            _database(plan, plan.engine, archive, writer, on_progress)
        if plan.log is not None:
            writers = {spec.name: writer(spec) for spec in (EVENTS, UNREADABLE)}
            bounds = plan.log.bounds(Selection(since=_text(plan.since), until=_text(plan.until)))
            total = sum(bounds[1][p] - bounds[0][p] for p in bounds[0])

            def told(records: int) -> None:
                on_progress(EVENTS.name, records, total)

            archive.log = export_log(
                plan.log, bounds, plan.sessions, plan.blobs, writers, plan.format, told, erased=plan.erased
            )
            archive.parts |= {name: one.close() for name, one in writers.items()}
    dump(root / SCHEMA, describe(specs, plan.format))
    dump(root / MANIFEST, _manifest(plan, archive, now))
    return archive


def _database(
    plan: Plan,
    engine: Engine,
    archive: Archive,
    writer: Callable[[TableSpec], TableWriter],
    on_progress: OnProgress,
) -> None:
    chosen = RowFilter(since=plan.since, until=plan.until, sessions=plan.sessions)
    with engine.connect().execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True) as connection:
        for table in derived_tables():
            if plan.tables is not None and table.name not in plan.tables:
                continue
            total, done = count_rows(connection, table, chosen), 0

            def told(more: int, name: str = table.name, total: int = total) -> None:
                nonlocal done
                done += more
                on_progress(name, done, total)

            one = writer(sql_spec(table))
            export_table(connection, table, chosen, one, told)
            archive.parts[table.name] = one.close()


def _manifest(plan: Plan, archive: Archive, now: datetime) -> dict[str, Any]:
    log = archive.log
    return {
        "layout": LAYOUT_VERSION,
        "format": plan.format,
        "made_at": iso(now),
        "since": _text(plan.since),
        "until": _text(plan.until),
        "sessions": None if plan.sessions is None else sorted(plan.sessions),
        "log": None
        if log is None or plan.log is None
        else {
            "topic": plan.log.name,
            "starts": {str(p): offset for p, offset in sorted(log.starts.items())},
            "ends": {str(p): offset for p, offset in sorted(log.ends.items())},
        },
        "tables": {
            name: {"rows": sum(part.rows for part in parts), "files": [asdict(part) for part in parts]}
            for name, parts in archive.parts.items()
        },
    }


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def dump(path: Path, document: dict[str, Any]) -> None:
    """Write JSON; it is on the disk when this returns."""
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(document, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())


def sync(directory: Path) -> None:
    """Have the directory's entries on the disk."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
