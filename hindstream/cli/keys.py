"""`hindstream keys`: who may use the gateway. A key is shown once; only its hash is kept."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from sqlalchemy import Connection

from hindstream.cli.database import database
from hindstream.errors import UserError
from producers.gateway.access import store

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)

TenantOption = Annotated[str, typer.Option(help="Whose it is; a tenant that is new is made.")]
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}
_LONGEST = timedelta(days=36_500)
_WIDE = 160
"""Columns where the output is no terminal: rich would fold names at 80."""


@app.callback()
def root() -> None:
    """Bearer keys of the gateway, each of one tenant."""


@app.command()
def create(
    tenant: TenantOption,
    name: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    expires: Annotated[str | None, typer.Option(help="30d, 12h, 90m, or a time as 2027-01-31T00:00Z.")] = None,
    record: Annotated[
        bool | None, typer.Option("--record/--no-record", help="Whether the tenant's requests are recorded.")
    ] = None,
) -> None:
    """Make a key and print it: on the last line, alone. It is shown this once. Gateways know it within seconds."""
    until = expires_at(expires, datetime.now(UTC)) if expires is not None else None
    with _transaction() as connection:
        try:
            key_id, key = store.create_key(connection, tenant, name, until, record=record)
        except ValueError as err:
            raise UserError(str(err)) from None
    typer.echo(f"key {key_id} of tenant {tenant}, shown this once:", err=True)
    print(key)


@app.command(name="list")
def list_() -> None:
    """Every key: whose, what for, until when. Not the key itself: nobody has it."""
    with _transaction() as connection:
        rows = store.list_keys(connection)
    table = Table("key", "tenant", "name", "recorded", "created", "expires", "state", box=box.SIMPLE)
    for row in rows:
        state = "revoked" if row.revoked_at is not None else "expired" if row.expired else "valid"
        table.add_row(
            row.key_id,
            row.tenant,
            escape(row.name or "–"),
            "yes" if row.recorded else "no",
            f"{row.created_at:%Y-%m-%d %H:%M}",
            f"{row.expires_at:%Y-%m-%d %H:%M}" if row.expires_at is not None else "never",
            state,
        )
    Console(width=None if sys.stdout.isatty() else _WIDE).print(table)


@app.command()
def revoke(key_id: Annotated[str, typer.Argument(help="As `hindstream keys list` calls it.")]) -> None:
    """Refuse a key from now on. Every gateway that reaches the database does so within seconds."""
    with _transaction() as connection:
        if not store.revoke_key(connection, key_id):
            raise UserError(f"there is no key {key_id!r}; look at `hindstream keys list`")
    print(f"key {key_id} is revoked")


@app.command(name="tenant")
def tenant_(
    name: Annotated[str, typer.Argument(help="Name of the tenant.")],
    record: Annotated[bool, typer.Option("--record/--no-record", help="Whether its requests are recorded.")],
) -> None:
    """Set whether a tenant's requests are recorded."""
    with _transaction() as connection:
        if not store.tenant_exists(connection, name):
            raise UserError(f"there is no tenant {name!r}; `hindstream keys create --tenant {name}` makes one")
        store.set_tenant(connection, name, record=record)
    print(f"requests of tenant {name} are {'recorded' if record else 'answered and not recorded'}")


def expires_at(said: str, now: datetime) -> datetime:
    """The moment that `30d`, `12h`, `90m` from `now`, or a time in ISO 8601 with its offset, is.

    Raises:
        UserError: it is none of them, or not after `now`.
    """
    span = re.fullmatch(r"(\d{1,7})([mhd])", said)
    try:
        if span is not None:
            length = int(span[1]) * _UNITS[span[2]]
            until = now + min(length, _LONGEST)
        else:
            until = datetime.fromisoformat(said)
    except ValueError:
        raise UserError(f"--expires: {said!r} is no time; say 30d, 12h, 90m or 2027-01-31T00:00Z") from None
    if until.tzinfo is None:
        raise UserError(f"--expires: {said!r} does not say its offset; end it with Z for UTC")
    if until <= now:
        raise UserError(f"--expires: {said} is over")
    return until


@contextmanager
def _transaction() -> Iterator[Connection]:
    """One transaction."""
    with database() as engine, engine.begin() as connection:
        yield connection
