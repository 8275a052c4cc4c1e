"""What an import shows: a bar over the bytes of all files while it reads, then what went in and what did not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from producers.importing import ImportReport
from producers.importing import Progress as FileProgress

_LISTED = 50
"""Refused rows that are printed of one file. Beyond it they push the table off every screen."""
_LEFT_OUT = 10
"""Files that are named which were left out for the same reason."""
_FILES = 40
"""Files with a line of their own in the table; a directory of thousands is summed by format."""


class FileBar:
    """The part of the bar that is one file."""

    def __init__(self, bar: ImportBar, before: int) -> None:
        self._bar, self._before = bar, before
        self.events = 0

    def show(self, now: FileProgress) -> None:
        """Move the bar on."""
        self._bar.advance(self._before + now.bytes_read, now.events - self.events)
        self.events = now.events


class ImportBar:
    """The bar over all files: bytes, rate, time left, events."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[events]:,} events"),
            console=Console(stderr=True),
        )
        self._sizes = {path: path.stat().st_size for path in paths}
        self._task = self._progress.add_task("", total=sum(self._sizes.values()), events=0)
        self._done = self._events = self._number = 0

    def __enter__(self) -> ImportBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    @contextmanager
    def file(self, path: Path) -> Iterator[FileBar]:
        """Inside, the bar is about this file."""
        self._number += 1
        self._progress.update(self._task, description=f"{path.name} ({self._number}/{len(self._sizes)})")
        yield FileBar(self, self._done)
        self._done += self._sizes[path]
        self._progress.update(self._task, completed=self._done)

    def advance(self, completed: int, events: int) -> None:
        """`completed` bytes are read in all, and `events` more events are in."""
        self._events += events
        self._progress.update(self._task, completed=completed, events=self._events)


def print_reports(console: Console, reports: Sequence[ImportReport], title: str) -> None:
    """The counts as a table, next states by kind, and the rows that were refused."""
    console.print(_table(reports, title))
    console.print(f"next states by kind: {_kinds(reports)}", highlight=False)
    for report in reports:
        for row in report.refused[:_LISTED]:
            console.print(f"refused {row}", style="yellow", markup=False, highlight=False, soft_wrap=True)
            if row.excerpt:
                console.print(f"        {row.excerpt}", style="dim", markup=False, highlight=False, soft_wrap=True)
        if (more := report.refused_rows - _LISTED) > 0:
            console.print(
                f"refused {report.file}: {more:,} more rows; --refused-to FILE writes all of them",
                style="yellow",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )


def print_left_out(console: Console, skipped: Sequence[tuple[Path, str]]) -> None:
    """The files of directories and patterns that were left out, by reason."""
    by_reason: dict[str, list[Path]] = {}
    for path, why in skipped:
        by_reason.setdefault(why, []).append(path)
    for why, paths in by_reason.items():
        shown = [str(path) for path in paths[:_LEFT_OUT]] + (["..."] if len(paths) > _LEFT_OUT else [])
        line = f"left out, {why}: {len(paths):,} ({', '.join(shown)})"
        console.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)


def _table(reports: Sequence[ImportReport], title: str) -> Table:
    table = Table(title=title, box=None, pad_edge=False, header_style="bold", title_justify="left")
    table.add_column("file", overflow="fold")
    table.add_column("format")
    for name in ("sessions", "turns", "next states", "verdicts", "feedback", "events", "refused"):
        table.add_column(name, justify="right")
    rows = [(report.file, report.format, _counts(report)) for report in reports]
    if len(rows) > _FILES:
        by_format = Counter(report.format for report in reports)
        rows = [(f"{count:,} files", name, tuple(_sum(reports, name))) for name, count in sorted(by_format.items())]
    for file, name, counts in rows:
        table.add_row(file, name, *map(str, counts))
    if len(rows) > 1:
        table.add_section()
        table.add_row("all", "", *map(str, _sum(reports)))
    return table


def _sum(reports: Sequence[ImportReport], name: str | None = None) -> list[int]:
    chosen = [_counts(report) for report in reports if name in (None, report.format)]
    return [sum(column) for column in zip(*chosen, strict=True)]


def _counts(r: ImportReport) -> tuple[int, ...]:
    return r.sessions, r.turns, sum(r.next_states.values()), r.verdicts, r.feedback, r.events, r.refused_rows


def _kinds(reports: Sequence[ImportReport]) -> str:
    total = Counter[str]()
    for report in reports:
        total.update(report.next_states)
    return ", ".join(f"{count} {kind}" for kind, count in total.most_common()) or "none"
