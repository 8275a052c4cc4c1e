"""`hindstream runs`: which runs there are, what each is made of, how two differ, and deleting one."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import DBAPIError

from hindstream.endpoints import resolve_endpoints
from hindstream.errors import UserError
from hindstream.settings import load_settings
from processors.deleting import RunInUse, delete_run
from schemas.database import in_words
from schemas.recipes import Recipe, recipe_from_dict
from schemas.recipes.changes import as_toml, differences

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)

RunArgument = Annotated[str, typer.Argument(help="Name of the run.")]

_LIST = """
SELECT r.run, r.kind, r.policy, r.recipe_name AS recipe, r.created_at AS begun,
       CASE WHEN p.finished_at IS NOT NULL THEN 'done' WHEN p.run IS NOT NULL THEN 'unfinished'
            WHEN r.ended_at IS NULL THEN 'takes turns' ELSE 'ended' END AS state,
       l.turns_seen AS turns, l.trained, l.ready, l.pending, l.dropped, l.balance
FROM runs r JOIN ledger l ON l.run = r.run LEFT JOIN replays p ON p.run = r.run
WHERE r.deleted_at IS NULL ORDER BY r.created_at
"""
_SHOWN = ("run", "kind", "recipe", "begun", "state", "turns", "trained", "ready", "pending", "dropped", "balance")
_WIDE = 160
"""Columns where the output is no terminal: rich would fold names at 80."""
_DROPS = "SELECT drop_reason, turns FROM drops WHERE run = %(run)s ORDER BY turns DESC, drop_reason"
_REPLAY = "SELECT log, starts, ends, next, selection, stop_after, read, finished_at FROM replays WHERE run = %(run)s"
_VERSIONS = (
    "SELECT count(*) AS versions, min(version) AS first, max(version) AS last FROM weight_versions WHERE run = %(run)s"
)


@app.callback()
def root() -> None:
    """Runs: a name, a recipe, and a range of the log."""


@app.command(name="list")
def list_(as_json: Annotated[bool, typer.Option("--json", help="One JSON object a run.")] = False) -> None:
    """Every run with its ledger."""
    with _connected() as connection:
        rows = [dict(row) for row in connection.exec_driver_sql(_LIST).mappings()]
    if as_json:
        for row in rows:
            print(json.dumps(row, default=str, ensure_ascii=False))
        return
    table = Table(*_SHOWN, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for row in rows:
        row["begun"] = f"{row['begun']:%m-%d %H:%M}"
        table.add_row(*(escape(str(row[name])) for name in _SHOWN))
    Console(width=None if sys.stdout.isatty() else _WIDE).print(table)


@app.command()
def show(
    run: RunArgument, as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False
) -> None:
    """One run: its recipe, its range, its ledger, and why turns were dropped."""
    with _connected() as connection:
        about = _about(connection, run)
    if as_json:
        print(json.dumps({**about, "recipe": msgspec.to_builtins(about["recipe"])}, default=str, ensure_ascii=False))
        return
    console = Console()
    for name, value in about.items():
        if name != "recipe" and value is not None:
            shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
            console.print(f"{name}: {shown}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"\n{as_toml(about['recipe'])}", highlight=False, markup=False)


@app.command()
def diff(one: RunArgument, other: RunArgument) -> None:
    """Every field in which the recipes, or the ranges, of two runs differ."""
    with _connected() as connection:
        left, right = _about(connection, one), _about(connection, other)
    table = Table("field", one, other)
    for found in differences(left["recipe"], right["recipe"]):
        table.add_row(found.field, _value(found.one), _value(found.other))
    for name in ("kind", "policy", "replay"):
        if left[name] != right[name]:
            table.add_row(name, _value(left[name]), _value(right[name]))
    if not table.row_count:
        print(f"{one} and {other} have the same recipe and the same range")
        return
    Console().print(table)


@app.command()
def delete(run: RunArgument, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False) -> None:
    """Delete everything that a run derived: rows and weight files. Facts and recorded answers of models stay."""
    if not yes and not typer.confirm(f"delete every row and weight version of run {run!r}?"):
        raise typer.Exit(1)
    settings = load_settings()
    with _connected() as connection:
        try:
            gone = delete_run(connection, run)
        except RunInUse as err:
            raise UserError(str(err)) from None
        except LookupError:
            raise _no_run(run) from None
    # After the commit: files without rows are only space, rows without files would be a version that cannot load.
    from learner.checkpoints import policy_dir

    for policy in gone.policies:
        shutil.rmtree(policy_dir(settings.weights_dir, policy), ignore_errors=True)
    counts = ", ".join(f"{count} of {table}" for table, count in gone.rows.items()) or "no rows"
    files = f"; the weight files of {', '.join(gone.policies)}" if gone.policies else ""
    print(f"deleted: {counts}{files}")


def _about(connection: Connection, run: str) -> dict[str, Any]:
    named = {"run": run}
    row = connection.exec_driver_sql(
        "SELECT kind, policy, recipe_digest, recipe, created_at, ended_at FROM runs "
        "WHERE run = %(run)s AND deleted_at IS NULL",
        named,
    ).one_or_none()
    if row is None:
        raise _no_run(run)
    ledger = connection.exec_driver_sql("SELECT * FROM ledger WHERE run = %(run)s", named).mappings().one()
    replay = connection.exec_driver_sql(_REPLAY, named).mappings().one_or_none()
    recipe: Recipe = recipe_from_dict(row.recipe)
    return {
        "run": run,
        "kind": row.kind,
        "policy": row.policy,
        "recipe_digest": row.recipe_digest,
        "begun": row.created_at,
        "ended": row.ended_at,
        "ledger": {name: value for name, value in ledger.items() if name != "run"},
        "drops": {row.drop_reason: row.turns for row in connection.exec_driver_sql(_DROPS, named)},
        "versions": dict(connection.exec_driver_sql(_VERSIONS, named).mappings().one()),
        "replay": None if replay is None else dict(replay),
        "recipe": recipe,
    }


def _value(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


def _no_run(run: str) -> UserError:
    return UserError(f"there is no run {run!r}; `hindstream runs list` shows those that there are")


@contextmanager
def _connected() -> Iterator[Connection]:
    engine = create_engine(resolve_endpoints(load_settings()).database_url)
    try:
        with engine.begin() as connection:
            yield connection
    except DBAPIError as err:
        raise UserError(f"the database refused: {in_words(err)}; is it upgraded? `hindstream db upgrade`") from None
    finally:
        engine.dispose()
