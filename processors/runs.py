"""Runs: a name, a recipe, and the moment from which on the log's turns belong to it."""

from __future__ import annotations

from typing import Literal

import msgspec
from sqlalchemy import Connection

from processors.inserting import insert_new
from schemas import tables
from schemas.recipes import Recipe


class RunMismatch(ValueError):
    """A run of this name exists and is another: what differs, and what to do."""


def ensure_run(
    connection: Connection, *, run: str, kind: Literal["live", "replay"], policy: str, recipe: Recipe
) -> bool:
    """Have the run, in a transaction of its own. Returns whether it was made now.

    The lock on `turns` waits for every transaction that is inserting turns and holds off the next ones until the
    run is committed; and turns read the active runs after they are inserted. So the turns with `created_at` from the
    run's on are exactly those that got a sample in it, which is what the view `ledger` counts by. A replay
    takes its turns itself, so it needs no lock.

    Raises:
        RunMismatch: it exists with another recipe, policy or kind, or has ended.
        InvalidRecipe: the recipe cannot work (an empty judge, for one).
    """
    recipe.check()
    if _matches(connection, run, kind, policy, recipe):
        return False
    if kind == "live":
        connection.exec_driver_sql("LOCK TABLE turns IN SHARE MODE")
    inserted = insert_new(
        connection,
        tables.runs,
        [
            {
                "run": run,
                "kind": kind,
                "policy": policy,
                "recipe_name": recipe.name,
                "recipe": msgspec.to_builtins(recipe),
                "recipe_digest": recipe.digest(),
            }
        ],
        returning=("run",),
    )
    return bool(inserted) or not _matches(connection, run, kind, policy, recipe)


def end_run(connection: Connection, run: str) -> None:
    """Take no more turns into the run; what it has is still evaluated and trained. Calling it again does nothing."""
    connection.exec_driver_sql("LOCK TABLE turns IN SHARE MODE")
    connection.exec_driver_sql(
        "UPDATE runs SET ended_at = clock_timestamp() WHERE run = %(run)s AND ended_at IS NULL", {"run": run}
    )


def _matches(connection: Connection, run: str, kind: str, policy: str, recipe: Recipe) -> bool:
    """Whether the run exists just so; False where there is none."""
    found = connection.exec_driver_sql(
        "SELECT kind, policy, recipe_name, recipe_digest, ended_at, deleted_at FROM runs WHERE run = %(run)s",
        {"run": run},
    ).one_or_none()
    if found is None:
        return False
    if found.deleted_at is not None:
        raise RunMismatch(
            f"run {run!r} was deleted at {found.deleted_at:%Y-%m-%d %H:%M:%S}, and its micro-batches are still on the "
            "log: choose another name"
        )
    differs = []
    if found.recipe_digest != recipe.digest():
        differs.append(
            f"its recipe is {found.recipe_name!r} ({found.recipe_digest[:12]}), not {recipe.name!r} "
            f"({recipe.digest()[:12]})"
        )
    if found.policy != policy:
        differs.append(f"it trains policy {found.policy!r}, not {policy!r}")
    if found.kind != kind:
        differs.append(f"it is a {found.kind} run, not a {kind} one")
    if found.ended_at is not None:
        differs.append(f"it ended at {found.ended_at:%Y-%m-%d %H:%M:%S}")
    if differs:
        raise RunMismatch(
            f"run {run!r} exists and {'; '.join(differs)}. A run keeps its recipe: choose another name for the run, "
            "or set the recipe back"
        )
    return True
