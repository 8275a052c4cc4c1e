"""`hindstream weights`: which versions there are, where they come from, whether they are whole, and serving them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from sqlalchemy import Connection, TextClause, create_engine, text

from hindstream.cli import weights_files, weights_serving
from hindstream.endpoints import resolve_endpoints
from hindstream.errors import UserError
from hindstream.settings import load_settings

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)
app.add_typer(weights_files.app)
app.add_typer(weights_serving.app)

PolicyOption = weights_files.PolicyOption

_LIST = text(
    """
    SELECT v.policy, v.version, v.parent_version, v.run, b.seq, v.recipe_digest, v.path, v.manifest, v.created_at,
           t.samples_trained, t.tokens,
           (SELECT string_agg(holder, ', ' ORDER BY holder) FROM weight_pins p
            WHERE p.policy = v.policy AND p.version = v.version) AS pinned_by,
           (SELECT string_agg(DISTINCT l.server, ', ') FROM weight_loads l
            WHERE l.policy = v.policy AND l.version = v.version AND l.status = 'serving'
              AND l.created_at = (SELECT max(created_at) FROM weight_loads n
                                  WHERE n.server = l.server AND n.status = 'serving')
           ) AS served_by
    FROM weight_versions v
    LEFT JOIN micro_batches b ON b.micro_batch_id = v.micro_batch_id
    LEFT JOIN training_steps t ON t.micro_batch_id = v.micro_batch_id
    WHERE v.policy = :policy ORDER BY v.version
    """
)
_ONE = text("SELECT * FROM weight_versions WHERE policy = :policy AND version = :version")
_TURNS = text("SELECT count(*) FROM lineage WHERE policy = :policy AND version = :version")
_STEP = text(
    "SELECT step, metrics, samples_trained, samples_dropped, tokens, seconds FROM training_steps "
    "WHERE policy = :policy AND version = :version"
)
_BATCH = text("SELECT micro_batch_id, seq, digest, size FROM micro_batches WHERE micro_batch_id = :id")
_RECIPE = text("SELECT recipe_name AS name, recipe_digest AS digest, recipe FROM runs WHERE run = :run")
_LOADS = text(
    "SELECT server, attempt, status, detail, canary_before, canary_after, seconds, created_at FROM weight_loads "
    "WHERE policy = :policy AND version = :version ORDER BY created_at"
)

_UPLOADS = text(
    "SELECT url, status, attempts, detail, bytes, seconds, uploaded_at FROM weight_uploads "
    "WHERE policy = :policy AND version = :version ORDER BY url"
)
_PINS = text("SELECT holder FROM weight_pins WHERE policy = :policy AND version = :version ORDER BY holder")


@app.callback()
def root() -> None:
    """Weight versions: where they come from, whether they are whole, which are kept, and serving them."""


@app.command("list")
def list_versions(policy: PolicyOption = None) -> None:
    """Every version with its parent, what it learned from, and who serves it."""
    from learner.manifest import has_weights, kind_of

    with _database() as connection:
        rows = connection.execute(_LIST, {"policy": _policy(policy)}).all()
    if not rows:
        raise UserError(f"policy {_policy(policy)!r} has no weight version; `hindstream learner run` makes version 0")
    table = Table()
    for column in ("version", "parent", "run", "micro-batch", "turns", "tokens", "recipe", "kind", "files", "use"):
        table.add_column(column)
    for row in rows:
        table.add_row(
            str(row.version),
            _or_dash(row.parent_version),
            row.run or "base model",
            _or_dash(row.seq),
            _or_dash(row.samples_trained),
            _or_dash(row.tokens),
            (row.recipe_digest or "–")[:12],
            kind_of(row.manifest),
            "on disk" if has_weights(_directory(row)) else "files deleted",
            ", ".join(filter(None, (row.served_by, row.pinned_by and f"pin: {row.pinned_by}"))),
        )
    Console().print(table)


@app.command()
def show(version: int, policy: PolicyOption = None) -> None:
    """One version: manifest, step metrics, turns, and every load by a server, as JSON."""
    from learner.manifest import base_of, has_weights, kind_of

    name = _policy(policy)
    named = {"policy": name, "version": version}
    with _database() as connection:
        row = _version(connection, name, version)
        step = _first(connection, _STEP, named)
        batch = _first(connection, _BATCH, {"id": row.micro_batch_id})
        recipe = _first(connection, _RECIPE, {"run": row.run})
        loads = [dict(load._mapping) for load in connection.execute(_LOADS, named)]
        turns = connection.execute(_TURNS, named).scalar_one()
        uploads = [dict(copy._mapping) for copy in connection.execute(_UPLOADS, named)]
        pins = connection.execute(_PINS, named).scalars().all()
    plain = {
        "policy": row.policy,
        "version": row.version,
        "parent_version": row.parent_version,
        "kind": kind_of(row.manifest),
        "base_version": base_of(row.manifest),
        "run": row.run,
        "micro_batch": batch,
        "recipe": recipe,
        "created_at": row.created_at,
        "path": str(_directory(row)),
        "files_on_disk": has_weights(_directory(row)),
        "manifest_sha256": row.manifest_sha256,
        "manifest": row.manifest,
        "turns_trained": turns,
        "step": step,
        "loads": loads,
        "pinned_by": pins,
        "uploads": uploads,
    }
    print(json.dumps(plain, indent=2, default=str))


@app.command()
def verify(
    version: Annotated[int | None, typer.Argument(help="Default: every version whose files are kept.")] = None,
    policy: PolicyOption = None,
) -> None:
    """Hash the files again and compare them with the manifest; a delta with its base, put together. Exit code 1 where
    something differs."""
    from learner.manifest import has_weights, manifest_digest
    from learner.stored import Version, base_version, faults

    name = _policy(policy)
    with _database() as connection:
        if version is None:
            rows = connection.execute(
                text("SELECT * FROM weight_versions WHERE policy = :policy ORDER BY version"), {"policy": name}
            ).all()
            rows = [row for row in rows if has_weights(_directory(row))]
        else:
            rows = [_version(connection, name, version)]
        versions = [Version(row.policy, row.version, _directory(row), row.manifest) for row in rows]
        bases = [base_version(connection, load_settings().weights_dir, one) for one in versions]
    if not rows:
        raise UserError(f"policy {name!r} has no weight version with files on disk")
    failed = False
    for row, one, base in zip(rows, versions, bases, strict=True):
        wrong = faults(one, base)
        if manifest_digest(row.manifest) != row.manifest_sha256:
            wrong.append("the manifest in the database is not the one that was announced")
        failed = failed or bool(wrong)
        print(f"version {row.version}: {'; '.join(wrong) or 'whole'}")
    raise typer.Exit(1 if failed else 0)


@contextmanager
def _database() -> Iterator[Connection]:
    engine = create_engine(resolve_endpoints(load_settings()).database_url)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _policy(given: str | None) -> str:
    return given or load_settings().run.policy


def _first(connection: Connection, query: TextClause, named: dict[str, Any]) -> dict[str, Any] | None:
    row = connection.execute(query, named).mappings().one_or_none()
    return None if row is None else dict(row)


def _version(connection: Connection, policy: str, version: int) -> Any:
    row = connection.execute(_ONE, {"policy": policy, "version": version}).one_or_none()
    if row is None:
        raise UserError(f"policy {policy!r} has no version {version}; `hindstream weights list` shows those it has")
    return row


def _directory(row: Any) -> Path:
    from learner.checkpoints import locate

    return locate(row.path, load_settings().weights_dir, row.policy, row.version)


def _or_dash(value: object) -> str:
    return "–" if value is None else str(value)
