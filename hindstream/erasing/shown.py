"""What an erasure found and did, as tables for people and as JSON."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hindstream.erasing.finding import Found, Lost
from hindstream.erasing.log_kept import until
from processors.erasing.seen import InTraining, SeenBy
from schemas.topics import DEAD_LETTERS, SIGNALS

_WIDE = 160
"""Columns where the output is no terminal: rich would fold names at 80."""
_OFFSETS = 12
"""Offsets that a line names; --json has all."""

ELSEWHERE = (
    "a gateway's spool (HOME/spool): turns that waited for the broker go to the log, and are left out there",
    "Postgres: pages and WAL keep the bytes until VACUUM and the next checkpoints reuse them; backups keep them",
    "whatever else read agent-events, signals or dead-letters, and archives that were not named with --archive",
)
"""What no command of ours reaches."""


@dataclass(kw_only=True)
class Report:
    """What there is of the sessions. `retention`: milliseconds by topic. `archives`: rows by file of each archive.
    `erased`: rows that were emptied, by session and table."""

    sessions: list[Found]
    seen: list[SeenBy]
    in_training: list[InTraining]
    lost: list[Lost]
    retention: dict[str, int]
    archives: dict[str, dict[str, int]]
    erased: dict[str, dict[str, int]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Everything, plainly."""
        return {
            "sessions": [asdict(found) | {"erased": self.erased.get(found.session_id)} for found in self.sessions],
            "weights": [asdict(one) for one in self.seen],
            "in_training": [asdict(one) for one in self.in_training],
            "without_state": [asdict(one) for one in self.lost],
            "retention_ms": self.retention,
            "archives": self.archives,
            "elsewhere": ELSEWHERE,
        }


def show(report: Report, *, done: bool = False) -> None:
    """Print it."""
    console = Console(width=None if sys.stdout.isatty() else _WIDE)

    def say(words: str) -> None:
        console.print(words, markup=False, highlight=False, soft_wrap=True)

    for found in report.sessions:
        if found.erased_at is not None:
            left = "it holds something again" if any(found.rows.values()) else "nothing of it is left"
            say(f"session {found.session_id} was erased at {found.erased_at:%Y-%m-%d %H:%M:%S%z}; {left}")
        elif not found.known:
            say(f"session {found.session_id}: there is no row of it; events of it will be left out from now on")
    console.print(_rows(report, done))
    _show_log(report, say)
    for root, files in report.archives.items():
        rows = sum(files.values())
        say(f"archive {root}: {rows} rows in {len(files)} files{' were taken out' if done and rows else ''}")
        for path, count in files.items():
            say(f"  {path}: {count}")
    if report.seen:
        console.print(_weights(report.seen))
        say("These weights stay as they are; to be sure, serve a version from before and train again from it.")
    elif report.sessions:
        say("No weight version had seen them.")
    for one in report.in_training:
        say(
            f"Micro-batch {one.seq} of run {one.run} has {one.samples} samples of them and is not committed: the "
            "learner drops them, unless it trains them at this moment. Look again with --dry-run when it is."
        )
    for lost in report.lost:
        say(
            f"WARNING policy {lost.policy}: version {lost.version} had seen them, and the trainer's newest saved state "
            f"is of version {lost.state}. A learner that runs saves its state when they are erased; one that was "
            "killed cannot start again on this policy. If none runs, start and stop it first."
        )
    say("Not reached by this command:")
    for place in ELSEWHERE:
        say(f"  {place}")


def _rows(report: Report, done: bool) -> Table:
    table = Table("what", "erased" if done else "would go", box=box.SIMPLE, padding=(0, 1, 0, 0))
    counts: Counter[str] = Counter()
    for found in report.sessions:
        counts.update(report.erased.get(found.session_id, {}) if done else found.rows)
        if not done:
            counts["claim checks"] += len(found.datarefs)
    for name, count in counts.items():
        table.add_row(escape(name), f"{count:,}")
    return table


def _show_log(report: Report, say: Callable[[str], None]) -> None:
    places = [place for found in report.sessions for place in found.places]
    places.sort(key=lambda place: (place.topic, place.partition))
    for (topic, partition), group in groupby(places, key=lambda place: (place.topic, place.partition)):
        same = list(group)
        offsets = sorted(offset for place in same for offset in place.offsets)
        shown = ", ".join(map(str, offsets[:_OFFSETS])) + (", …" if len(offsets) > _OFFSETS else "")
        kept = _kept(report, topic, max(place.newest for place in same))
        say(f"Kafka still holds {len(offsets)} records at {topic}/{partition}, offsets {shown}: {kept}")
    for topic in (SIGNALS, DEAD_LETTERS):
        if count := sum(found.copies[topic] for found in report.sessions):
            kept = _hours(report.retention[topic])
            say(f"Kafka still holds what {count} messages on {topic} said of them, for {kept}")


def _kept(report: Report, topic: str, newest: datetime) -> str:
    retention = report.retention.get(topic)
    return "these are files, not Kafka" if retention is None else until(newest, retention)


def _hours(milliseconds: int) -> str:
    return "ever" if milliseconds < 0 else f"{milliseconds / 3_600_000:g} h after they were sent"


def _weights(seen: list[SeenBy]) -> Table:
    table = Table(
        "policy",
        "version",
        "run",
        "samples of them",
        title="Weight versions that had seen them",
        box=box.SIMPLE,
        title_justify="left",
    )
    for one in seen:
        samples = str(one.samples) if one.samples else "0, by descent"
        table.add_row(escape(one.policy), str(one.version), escape(one.run or "–"), samples)
    return table
