"""What a replay shows while it runs: how much of the log is read, judged, batched and trained, and how fast."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from processors.replay.progress import Counts

_PLAIN_EVERY_S = 5.0
"""Between two lines where the output is no terminal."""


class ReplayScreen:
    """Bars on a terminal, a line now and then elsewhere."""

    def __init__(self, *, trains: bool) -> None:
        self._console = Console(stderr=True)
        self._live = sys.stderr.isatty()
        self._progress = Progress(
            TextColumn("{task.description:<9}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=self._console,
        )
        names = ("log", "signals", "batches") if trains else ("log", "signals")
        self._tasks = {name: self._progress.add_task(name, total=None, rate="") for name in names}
        self._begun: float | None = None
        self._first: Counts | None = None
        self._told = 0.0

    def __enter__(self) -> ReplayScreen:
        if self._live:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._progress.stop()

    def show(self, counts: Counts) -> None:
        """Bring the screen up to date."""
        now = time.monotonic()
        if self._begun is None or self._first is None:
            self._begun, self._first = now, counts
        rate = (counts.turns - self._first.turns) / max(now - self._begun, 1e-3)
        done = {
            "log": (counts.records, counts.records_total),
            "signals": (counts.answered, counts.asked),
            "batches": (counts.trained, counts.batched),
        }
        if self._live:
            for name, task in self._tasks.items():
                shown = f"{rate:,.0f} turns/s" if name == "log" else ""
                self._progress.update(task, completed=done[name][0], total=done[name][1] or None, rate=shown)
        elif now - self._told >= _PLAIN_EVERY_S:
            self._told = now
            words = ", ".join(f"{name} {done[name][0]}/{done[name][1]}" for name in self._tasks)
            self._console.print(f"{words}, {counts.turns} turns, {rate:,.0f} turns/s", highlight=False)
