"""`hindstream compare A B`: what two runs made of the same turns."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError

from hindstream.compare.figures import UnknownRun, compare_runs
from hindstream.compare.page import page
from hindstream.compare.report import as_json, print_comparison
from hindstream.endpoints import resolve_endpoints
from hindstream.errors import UserError
from hindstream.settings import load_settings
from schemas.database import in_words
from schemas.recipes import InvalidRecipe

_WIDE = 120
"""Columns where the output is no terminal."""


def compare(
    a: Annotated[str, typer.Argument(help="The first run.")],
    b: Annotated[str, typer.Argument(help="The second run.")],
    json_: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
    held_out: Annotated[
        int,
        typer.Option("--held-out", help="Score up to this many turns that neither trained; loads the weights.", min=0),
    ] = 0,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page that opens from disk.")] = None,
) -> None:
    """Agreement of rewards and hints, turns that one alone trained, learning curves, ratios and staleness."""
    settings = load_settings()
    engine = create_engine(
        resolve_endpoints(settings).database_url,
        connect_args={"options": "-c default_transaction_read_only=on"},
    )
    try:
        with engine.connect() as connection:
            comparison = compare_runs(connection, a, b)
            held = None
            if held_out:
                from hindstream.compare.held_out import held_out as gains

                held = gains(connection, settings, a, b, held_out)
    except UnknownRun as err:
        raise UserError(f"there is no run {str(err)!r}; `hindstream runs list` shows those that there are") from None
    except InvalidRecipe as err:
        raise UserError(str(err)) from None
    except DBAPIError as err:
        raise UserError(f"the database refused: {in_words(err)}; is it upgraded? `hindstream db upgrade`") from None
    finally:
        engine.dispose()
    if json_:
        print(json.dumps(as_json(comparison, held), default=str, ensure_ascii=False))
    else:
        print_comparison(Console(width=None if sys.stdout.isatty() else _WIDE), comparison, held)
    if html is not None:
        try:
            html.parent.mkdir(parents=True, exist_ok=True)
            html.write_text(page(comparison, held), encoding="utf-8")
        except OSError as err:
            raise UserError(f"{html}: cannot be written ({err.strerror})") from None
        print(f"the page is {html}", file=sys.stderr)
