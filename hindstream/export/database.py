"""Derived rows of the database as rows of an archive, all as of one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Table, Text, cast, func, select
from sqlalchemy.dialects.postgresql import JSONB

from hindstream.export.layout import TableSpec
from hindstream.export.values import Row
from hindstream.export.writing import TableWriter
from schemas import tables

_FETCH = 1000
"""Rows on their way at once: with token arrays of 32k some are a quarter of a megabyte."""


@dataclass(frozen=True, kw_only=True)
class RowFilter:
    """Which rows: by the time of their insert, from `since` on and before `until`; and of tables about turns, only
    those of `sessions`."""

    since: datetime | None = None
    until: datetime | None = None
    sessions: frozenset[str] | None = None


def export_table(
    connection: Connection, table: Table, chosen: RowFilter, writer: TableWriter, on_rows: Callable[[int], None]
) -> int:
    """Write the rows of `table`, in the order of their keys; returns how many there are."""
    written = 0
    for row in rows_of(connection, table, chosen):
        writer.write(_date(writer.spec, row), row)
        written += 1
        if written % _FETCH == 0:
            on_rows(_FETCH)
    on_rows(written % _FETCH)
    return written


def count_rows(connection: Connection, table: Table, chosen: RowFilter) -> int:
    """How many rows `export_table` will write."""
    return int(connection.execute(select(func.count()).select_from(_chosen(table, chosen).subquery())).scalar_one())


def rows_of(connection: Connection, table: Table, chosen: RowFilter) -> Iterator[Row]:
    """The rows, JSON as the database's text of it."""
    order = [table.c.created_at] if "created_at" in table.c else []
    statement = _chosen(table, chosen).order_by(*order, *table.primary_key.columns)
    result = connection.execution_options(stream_results=True, yield_per=_FETCH).execute(statement)
    for row in result.mappings():
        yield dict(row)


def _chosen(table: Table, chosen: RowFilter) -> Select[Any]:
    columns: list[ColumnElement[Any]] = [
        cast(column, Text).label(column.name) if isinstance(column.type, JSONB) else column for column in table.columns
    ]
    statement = select(*columns)
    if "created_at" in table.c:
        if chosen.since is not None:
            statement = statement.where(table.c.created_at >= chosen.since)
        if chosen.until is not None:
            statement = statement.where(table.c.created_at < chosen.until)
    if chosen.sessions is not None:
        if "session_id" in table.c:
            statement = statement.where(table.c.session_id.in_(chosen.sessions))
        elif "turn_id" in table.c:
            turns = select(tables.turns.c.turn_id).where(tables.turns.c.session_id.in_(chosen.sessions))
            statement = statement.where(table.c.turn_id.in_(turns))
    return statement


def _date(spec: TableSpec, row: Row) -> str:
    moment = row[spec.dated_by] if spec.dated_by else None
    return moment.astimezone(UTC).date().isoformat() if isinstance(moment, datetime) else "none"
