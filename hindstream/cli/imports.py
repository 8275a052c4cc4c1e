"""`hindstream import FORMAT FILE...`: historical conversations into the log of events."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from hindstream.endpoints import resolve_endpoints
from hindstream.errors import UserError
from hindstream.settings import Settings, load_settings
from producers.importers import IMPORTERS, Importer
from producers.importing import ImportFailed, ImportReport, import_file, survey_file
from schemas.claim_check import DirectoryBlobStore
from schemas.publish import AckedPublisher
from schemas.topics import AGENT_EVENTS

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)

WIDE = 160
"""Columns where the output is no terminal: rich would fold file names at 80, and they are for copying."""

CLIENT = "hindstream-import"
BROKER_ANSWERS_S = 10.0
"""A broker that is there answers in milliseconds; one that has just been started, in a few seconds."""

Files = Annotated[list[Path], typer.Argument(metavar="FILE", help="The files to import.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Read and count only: nothing is published, no broker is needed.")
]


@app.callback()
def root() -> None:
    """Bring historical conversations into the log. The same file twice adds nothing."""


def _command(importer: Importer) -> Callable[[list[Path], bool], None]:
    def command(files: Files, dry_run: DryRun = False) -> None:
        run(importer, files, dry_run)

    return command


for _importer in IMPORTERS.values():
    _summary = (_importer.__doc__ or _importer.NAME).strip().splitlines()[0]
    app.command(_importer.NAME, help=_summary)(_command(_importer))


def run(importer: Importer, files: list[Path], dry_run: bool) -> None:
    """Import `files`; exit code 1 if nothing went in.

    Raises:
        UserError: a file cannot be opened, there is no broker, or it went away.
        typer.Exit: with code 1.
    """
    console = Console(width=None if sys.stdout.isatty() else WIDE)
    surveys = [_survey(importer, path) for path in files]
    reports = surveys if dry_run else _publish(importer, files, surveys)
    console.print(_table(reports, "would go in" if dry_run else "on the log"))
    console.print(f"next states by kind: {_kinds(reports)}", highlight=False)
    for row in (row for report in reports for row in report.refused):
        console.print(f"refused {row}", style="yellow", markup=False, highlight=False, soft_wrap=True)
        if row.excerpt:
            console.print(f"        {row.excerpt}", style="dim", markup=False, highlight=False, soft_wrap=True)
    if not any(report.events for report in reports):
        console.print("nothing went in: no row could be read", style="red")
        raise typer.Exit(1)


def _survey(importer: Importer, path: Path) -> ImportReport:
    try:
        return survey_file(importer, path)
    except OSError as err:
        raise UserError(f"{path}: cannot be opened ({err.strerror}); nothing was imported") from None


def _publish(importer: Importer, files: list[Path], surveys: list[ImportReport]) -> list[ImportReport]:
    settings = load_settings()
    blobs = DirectoryBlobStore(settings.blobs_dir)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    reports = []
    with _publisher(settings) as publisher, Progress(*columns, console=Console(stderr=True)) as progress:
        for path, survey in zip(files, surveys, strict=True):
            task = progress.add_task(path.name, total=survey.events)

            def advance(events: int, task: TaskID = task) -> None:
                progress.update(task, completed=events)

            try:
                reports.append(import_file(importer, path, publisher, blobs, advance))
            except ImportFailed as err:
                raise UserError(str(err)) from None
            except OSError as err:
                raise UserError(f"{err.filename}: {err.strerror}") from None
    return reports


@contextmanager
def _publisher(settings: Settings) -> Iterator[AckedPublisher]:
    servers = resolve_endpoints(settings).bootstrap_servers
    try:
        _check_topic(servers)
        publisher = AckedPublisher(servers, client_id=CLIENT)
    except KafkaError as err:
        raise UserError(
            f"no Kafka broker answers at {servers} ({err}); look at `hindstream status`, or set "
            "HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS; nothing was imported"
        ) from None
    with publisher:
        yield publisher


def _check_topic(servers: str) -> None:
    """A topic that is not there would show only as half a minute of waiting for metadata."""
    admin = KafkaAdminClient(
        bootstrap_servers=servers.split(","), client_id=CLIENT, bootstrap_timeout_ms=int(BROKER_ANSWERS_S * 1000)
    )
    try:
        if AGENT_EVENTS not in admin.list_topics():
            raise UserError(f"the broker at {servers} has no topic {AGENT_EVENTS}; run `hindstream topics create`")
    finally:
        admin.close()


def _table(reports: list[ImportReport], title: str) -> Table:
    table = Table(title=title, box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.add_column("file", overflow="fold")
    for name in ("sessions", "turns", "next states", "verdicts", "events", "refused"):
        table.add_column(name, justify="right")
    rows = [(r.sessions, r.turns, sum(r.next_states.values()), r.verdicts, r.events, len(r.refused)) for r in reports]
    for report, row in zip(reports, rows, strict=True):
        table.add_row(report.file, *map(str, row))
    if len(rows) > 1:
        table.add_section()
        table.add_row("all", *(str(sum(column)) for column in zip(*rows, strict=True)))
    return table


def _kinds(reports: list[ImportReport]) -> str:
    total = Counter[str]()
    for report in reports:
        total.update(report.next_states)
    return ", ".join(f"{count} {kind}" for kind, count in total.most_common()) or "none"
