"""`hindstream db upgrade`: the database has every table and view of this version."""

from __future__ import annotations

import typer
from sqlalchemy.exc import DBAPIError

from hindstream.endpoints import resolve_endpoints
from hindstream.errors import UserError
from hindstream.settings import load_settings

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def root() -> None:
    """Bring the database schema up to date."""


@app.command()
def upgrade() -> None:
    """Run the migrations that have not run yet. Safe to call again, and from several machines at once."""
    upgrade_database(resolve_endpoints(load_settings()).database_url)
    print("the database is up to date")


def upgrade_database(url: str) -> None:
    """Bring the database at `url` to this version's schema.

    Raises:
        UserError: it cannot be reached, or refuses.
    """
    from migrations import upgrade as migrate

    try:
        migrate(url)
    except DBAPIError as err:
        lines = str(err.orig).strip().splitlines() or ["no message"]
        raise UserError(
            f"the database could not be upgraded: {lines[0]}; look at `hindstream status`, or set "
            "HINDSTREAM_DATABASE__URL"
        ) from None
