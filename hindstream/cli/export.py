"""`hindstream export`: archives of the log and of derived rows, and data sets for other trainers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from sqlalchemy.exc import DBAPIError

from hindstream.endpoints import resolve_endpoints
from hindstream.erasing.known import known_erased
from hindstream.errors import UserError
from hindstream.export.archive import Archive, Plan, export_archive
from hindstream.export.data_set import write_data_set
from hindstream.export.examples import Kind, examples, find_run
from hindstream.export.layout import Format, derived_tables
from hindstream.export.reading import ArchiveReader
from hindstream.settings import load_settings
from processors.replay.log import LogAway, LogGone
from processors.replay.sources import TopicLog, moment
from schemas.claim_check import DirectoryBlobStore
from schemas.database import in_words, make_engine

app = typer.Typer(add_completion=False, rich_markup_mode=None, invoke_without_command=True)

_APPLICATION = "hindstream-export"
INTERRUPTED = 130
"""What a shell expects of a command that Ctrl-C ended."""
_T = TypeVar("_T")


@app.callback()
def export(
    context: typer.Context,
    to: Annotated[Path | None, typer.Option("--to", metavar="DIR", help="A directory that is not there yet.")] = None,
    format_: Annotated[str, typer.Option("--format", help="parquet or jsonl (compressed with zstd).")] = "parquet",
    tables: Annotated[
        str, typer.Option(help="facts (the log), derived (the database), all, or names of derived tables with commas.")
    ] = "all",
    since: Annotated[str | None, typer.Option(help="From this time on (ISO 8601; UTC without an offset).")] = None,
    until: Annotated[str | None, typer.Option(help="Before this time.")] = None,
    sessions: Annotated[str | None, typer.Option(help="Only these sessions, with commas between.")] = None,
) -> None:
    """Write an archive: the log of facts and everything derived from it, so that no retention ends history."""
    if context.invoked_subcommand is not None:
        return
    if to is None:
        raise UserError(
            "where to? Give --to DIR; `hindstream export dataset` and `export verify` are commands of their own"
        )
    if format_ not in ("parquet", "jsonl"):
        raise UserError(f"--format is {format_!r}; choose parquet or jsonl")
    kind: Format = "jsonl" if format_ == "jsonl" else "parquet"
    facts, names = _tables(tables)
    settings = load_settings()
    endpoints = resolve_endpoints(settings)
    console = Console(stderr=True)
    with ExitStack() as stack:
        database = make_engine(endpoints.database_url, pool_size=1, application_name=_APPLICATION)
        stack.callback(database.dispose)
        engine = database if names is None or names else None
        plan = Plan(
            to=to,
            format=kind,
            log=TopicLog(endpoints.bootstrap_servers) if facts else None,
            engine=engine,
            blobs=DirectoryBlobStore(settings.blobs_dir),
            tables=names,
            since=_moment(since, "since"),
            until=_moment(until, "until"),
            sessions=frozenset(filter(None, sessions.split(","))) if sessions is not None else None,
            erased=told(lambda: known_erased(database)) if facts else frozenset(),
        )
        archive = told(lambda: _export(plan, console))
    _show(archive, to)


@app.command()
def dataset(
    kind: Annotated[str, typer.Option(help="sft (to imitate), kto (rated) or dpo (one answer preferred to another).")],
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="A new .jsonl or .parquet file.")],
    run: Annotated[str | None, typer.Option(help="Whose rewards count; default: the setting run.name.")] = None,
) -> None:
    """Write what a run found as a data set in TRL's conversational formats, with its lineage in further columns."""
    if kind not in ("sft", "dpo", "kto"):
        raise UserError(f"--kind is {kind!r}; choose sft, dpo or kto")
    chosen: Kind = "sft" if kind == "sft" else "dpo" if kind == "dpo" else "kto"
    settings = load_settings()
    name = run or settings.run.name
    engine = make_engine(resolve_endpoints(settings).database_url, pool_size=1, application_name=_APPLICATION)

    def write() -> int:
        with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
            found = find_run(connection, name)
            if found is None:
                raise UserError(f"there is no run {name}; `hindstream runs list` shows those that there are")
            return write_data_set(to, chosen, examples(connection, found, chosen))

    try:
        count = told(write)
    finally:
        engine.dispose()
    if not count:
        print(f"hindstream: run {name} has no example of kind {kind} yet; {to} was not written", file=sys.stderr)
        raise typer.Exit(1)
    print(f"{to}: {count} examples")


@app.command()
def verify(directory: Annotated[Path, typer.Argument(metavar="DIR", help="An archive.")]) -> None:
    """Compare every file of an archive with its checksum; exit code 1 if one differs."""
    reader = ArchiveReader(directory)
    faults = list(reader.faults())
    for fault in faults:
        print(fault)
    if faults:
        raise typer.Exit(1)
    files = sum(len(table["files"]) for table in reader.manifest["tables"].values())
    print(f"{directory}: {files} files, each as it was written")


def told(work: Callable[[], _T]) -> _T:
    """The result of `work`, its foreseeable faults as lines for a person.

    Raises:
        typer.Exit: it was interrupted.
        UserError: the broker or the database is away, or retention took a part.
    """
    try:
        return work()
    except KeyboardInterrupt:
        print("hindstream: interrupted; nothing was written", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    except (LogAway, LogGone) as err:
        raise UserError(str(err)) from None
    except DBAPIError as err:
        raise UserError(
            f"the database failed: {in_words(err)}; is it there, and up to date (`hindstream db upgrade`)?"
        ) from None


def _export(plan: Plan, console: Console) -> Archive:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bars: dict[str, TaskID] = {}
    with Progress(*columns, console=console) as progress:

        def show(table: str, done: int, total: int) -> None:
            if table not in bars:
                bars[table] = progress.add_task(table, total=total)
            progress.update(bars[table], completed=done, total=total)

        return export_archive(plan, datetime.now(UTC), show)


def _tables(text: str) -> tuple[bool, frozenset[str] | None]:
    """Whether facts are wanted, and which derived tables: None for all."""
    if text in ("all", "facts", "derived"):
        return text != "derived", frozenset() if text == "facts" else None
    known = {table.name for table in derived_tables()}
    names = frozenset(filter(None, text.split(",")))
    if strange := sorted(names - known):
        raise UserError(
            f"--tables: there is no {', '.join(strange)}; choose facts, derived, all, or of {', '.join(sorted(known))}"
        )
    return False, names


def _moment(text: str | None, name: str) -> datetime | None:
    try:
        return moment(text, f"--{name}")
    except ValueError as err:
        raise UserError(str(err)) from None


def _show(archive: Archive, to: Path) -> None:
    table = Table(title=str(to), box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.add_column("table")
    for name in ("rows", "files", "MB"):
        table.add_column(name, justify="right")
    for name, parts in archive.parts.items():
        megabytes = sum(part.bytes for part in parts) / 1e6
        table.add_row(name, f"{archive.rows(name):,}", str(len(parts)), f"{megabytes:,.1f}")
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    if archive.log is not None and (late := {p: o for p, o in archive.log.starts.items() if o > 0}):
        print(
            "note: the log no longer begins at its beginning, or --since was given: "
            + ", ".join(f"partition {p} from offset {offset}" for p, offset in sorted(late.items()))
            + "; what stood before is not in this archive",
            file=sys.stderr,
        )
