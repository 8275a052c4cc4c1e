"""`hindstream recipes list|show|diff`: what can be named, what it says, where two differ."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from hindstream.recipes import load_recipe
from schemas.recipes import PRESETS, Recipe, needs_of
from schemas.recipes.changes import as_toml, differences

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)

Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Change a field, for one loss.clip_high=0.3. May be repeated."),
]
Named = Annotated[str, typer.Argument(help="A preset, or a TOML or JSON file.")]


@app.callback()
def root() -> None:
    """How a turn becomes a gradient."""


@app.command("list")
def list_() -> None:
    """Every preset in one line, with what it asks for."""
    rows = [(name, ", ".join(_asks(recipe)), recipe.description) for name, recipe in PRESETS.items()]
    _table(("recipe", "asks for", "what it does"), rows)


@app.command()
def show(name: Named, set_: Set = None) -> None:
    """The whole recipe as a TOML file that can be changed and run, with its digest."""
    recipe = load_recipe(name, set_ or ())
    print(f"# digest {recipe.digest()}\n{as_toml(recipe)}", end="")


@app.command()
def diff(one: Named, other: Named, set_: Set = None) -> None:
    """The fields in which two recipes differ; --set changes the second one. Exit code 1 where there are any."""
    found = differences(load_recipe(one), load_recipe(other, set_ or ()))
    if found:
        _table(("field", one, other), [(each.field, _said(each.one), _said(each.other)) for each in found])
    raise typer.Exit(1 if found else 0)


def _asks(recipe: Recipe) -> list[str]:
    """What must be there beside turns and tokens."""
    needs = needs_of(recipe)
    asked = {
        "judge": recipe.judge is not None,
        "hints": recipe.hint is not None and recipe.hint.context is None,
        "context": recipe.hint is not None and recipe.hint.context is not None,
        "groups": needs.groups,
        "pairs": needs.pairs,
        "sessions": needs.session,
        "teacher": recipe.teacher is not None,
        "critic": recipe.critic is not None,
        "base model": needs.reference,
    }
    return [name for name, there in asked.items() if there]


def _said(value: Any) -> str:
    return "-" if value is None else json.dumps(value, ensure_ascii=False)


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in header:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    # Without a terminal rich would fold at 80 columns; names and values are for copying.
    Console(width=None if sys.stdout.isatty() else 240, markup=False, highlight=False).print(table)
