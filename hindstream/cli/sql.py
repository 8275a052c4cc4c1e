"""`hindstream sql "SELECT ..."`: ask the run's database and print the rows."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError

from hindstream.endpoints import resolve_endpoints
from hindstream.errors import UserError
from hindstream.settings import load_settings


def sql(
    query: Annotated[str, typer.Argument(help='For example "SELECT * FROM ledger".')],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a row.")] = False,
) -> None:
    """Run one query that changes nothing and print its rows."""
    engine = create_engine(
        resolve_endpoints(load_settings()).database_url,
        connect_args={"options": "-c default_transaction_read_only=on"},
    )
    try:
        with engine.connect() as connection:
            result = connection.exec_driver_sql(query)
            columns, rows = list(result.keys()), [tuple(row) for row in result]
    except DBAPIError as err:
        raise UserError(f"the database refused the query: {err.orig}") from None
    finally:
        engine.dispose()
    if as_json:
        for row in rows:
            print(json.dumps(dict(zip(columns, row, strict=True)), default=_plain, ensure_ascii=False))
        return
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*("NULL" if value is None else _shown(value) for value in row))
    Console().print(table)


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(_plain(value))


def _plain(value: Any) -> Any:
    return f"{len(value)} bytes" if isinstance(value, (bytes, memoryview)) else str(value)
