"""Many rows in one statement: columns travel as arrays, and `ON CONFLICT DO NOTHING` tells which rows were new."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import JSONB

from schemas.database import to_json

_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]


def insert_new(
    connection: Connection, table: Table, rows: Sequence[dict[str, Any]], *, returning: Sequence[str] = ()
) -> list[Any]:
    """Insert `rows`, all with the same keys; those whose key exists already, in the table or earlier in `rows`, are
    left as they are. Returns the `returning` columns of the new rows, in no order.

    None becomes NULL in every column, JSONB too.
    """
    if not rows:
        return []
    names = list(rows[0])
    types = [table.columns[name].type for name in names]
    arrays = ", ".join(f"%(c{i})s::{kind.compile(dialect=_DIALECT)}[]" for i, kind in enumerate(types))
    statement = (
        f"INSERT INTO {table.name} ({', '.join(_quoted(name) for name in names)}) "
        f"SELECT * FROM unnest({arrays}) ON CONFLICT DO NOTHING"
    )
    parameters = {
        f"c{i}": [_json(row[name]) for row in rows] if isinstance(kind, JSONB) else [row[name] for row in rows]
        for i, (name, kind) in enumerate(zip(names, types, strict=True))
    }
    if returning:
        statement += f" RETURNING {', '.join(_quoted(name) for name in returning)}"
    result = connection.exec_driver_sql(statement, parameters)
    return list(result) if returning else []


def _json(value: Any) -> str | None:
    return None if value is None else to_json(value)


def _quoted(name: str) -> str:
    return f'"{name}"'
