"""`hindstream import FILE...`: historical conversations into the log of events, whatever format they are in."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TextIO

import typer
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError
from rich.console import Console

from hindstream.cli.import_screen import FileBar, ImportBar, print_left_out, print_reports
from hindstream.endpoints import resolve_endpoints
from hindstream.erasing.known import WithoutErased, erased_as_told
from hindstream.errors import UserError
from hindstream.settings import Settings, load_settings
from producers.importers import IMPORTERS, RefusedRow
from producers.importers.finding import Findings, Found, NotImportable, find
from producers.importing import ImportFailed, ImportReport, Publisher, import_file, survey_file
from schemas.claim_check import BlobStore, DirectoryBlobStore
from schemas.publish import AckedPublisher
from schemas.topics import AGENT_EVENTS

WIDE = 160
"""Columns where the output is no terminal: rich would fold file names at 80, and they are for copying."""

CLIENT = "hindstream-import"
BROKER_ANSWERS_S = 10.0
"""A broker that is there answers in milliseconds; one that has just been started, in a few seconds."""
INTERRUPTED = 130
"""What a shell expects of a command that Ctrl-C ended."""


def import_(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE...", help="Files, directories, patterns; gzip and zstd are read as they are."),
    ] = None,
    format_name: Annotated[
        str | None, typer.Option("--format", metavar="NAME", help="The format, where content does not tell it.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and count only: nothing is published, no broker is needed.")
    ] = False,
    refused_to: Annotated[
        Path | None, typer.Option("--refused-to", metavar="FILE", help="Write every refused row there as JSON lines.")
    ] = None,
    formats: Annotated[bool, typer.Option("--formats", help="List the formats and stop.")] = False,
) -> None:
    """Bring historical conversations into the log. The same file twice adds nothing."""
    console = Console(width=None if sys.stdout.isatty() else WIDE)
    if formats:
        print_formats(console)
        return
    if not files:
        raise UserError("which files? Give files, directories or patterns; --formats lists what can be read")
    found = _find(files, format_name)
    # What is loaded by now stays: the collector need not walk through it for every file, a tenth of the time.
    gc.freeze()
    with ExitStack() as stack:
        refused = stack.enter_context(_open_refused(refused_to)) if refused_to else None
        reports = _all(stack, found.files, dry_run, refused)
    print_reports(console, reports, "would go in" if dry_run else "on the log")
    print_left_out(console, found.skipped)
    if not any(report.events for report in reports):
        console.print("nothing went in: no row could be read", style="red")
        raise typer.Exit(1)


def print_formats(console: Console) -> None:
    """Each format with the first line of what its module says about it."""
    for name, importer in IMPORTERS.items():
        summary = (importer.__doc__ or "").strip().partition("\n")[0]
        console.print(f"{name:<20}{summary}", markup=False, highlight=False, soft_wrap=True)


def _find(files: list[str], format_name: str | None) -> Findings:
    try:
        found = find(files, IMPORTERS, format_name)
    except NotImportable as err:
        raise UserError(f"{err}; nothing was imported") from None
    except OSError as err:
        raise UserError(f"{err.filename}: cannot be opened ({err.strerror}); nothing was imported") from None
    if not found.files:
        reasons = "".join(f"\n  {path}: {why}" for path, why in found.skipped[:20])
        raise UserError(f"there is no file that can be imported; nothing was imported{reasons}")
    return found


def _all(stack: ExitStack, files: list[Found], dry_run: bool, refused: TextIO | None) -> list[ImportReport]:
    publisher: Publisher | None = None
    blobs: BlobStore | None = None
    erased: frozenset[str] = frozenset()
    if not dry_run:
        settings = load_settings()
        erased = erased_as_told(settings)
        publisher, blobs = stack.enter_context(_publisher(settings)), DirectoryBlobStore(settings.blobs_dir)
    bar = stack.enter_context(ImportBar([found.path for found in files]))
    reports = []
    for found in files:
        with bar.file(found.path) as advance:
            reports.append(_one(found, publisher, blobs, advance, refused, erased))
    return reports


def _one(
    found: Found,
    publisher: Publisher | None,
    blobs: BlobStore | None,
    bar: FileBar,
    refused: TextIO | None,
    erased: frozenset[str],
) -> ImportReport:
    def refuse(row: RefusedRow) -> None:
        if refused is not None:
            refused.write(json.dumps({"path": str(found.path), **asdict(row)}) + "\n")

    try:
        if publisher is None or blobs is None:
            return survey_file(found.importer, found.path, bar.show, refuse)
        return import_file(WithoutErased(found.importer, erased), found.path, publisher, blobs, bar.show, refuse)
    except ImportFailed as err:
        raise UserError(str(err)) from None
    except OSError as err:
        raise UserError(f"{err.filename or found.path}: {err.strerror or err}") from None
    except KeyboardInterrupt:
        on_log = "nothing was published" if publisher is None else f"{bar.events} of its events are on the log"
        print(
            f"hindstream: interrupted at {found.path}; {on_log}. Run the import again: what is there already is not "
            "added twice",
            file=sys.stderr,
        )
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _open_refused(path: Path) -> Iterator[TextIO]:
    try:
        file = path.open("w", encoding="ascii")
    except OSError as err:
        raise UserError(f"{path}: cannot be written ({err.strerror}); nothing was imported") from None
    with file:
        yield file


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
