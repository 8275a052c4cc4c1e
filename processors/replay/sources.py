"""The topic agent-events as a log to replay."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from processors.dead_letters import Delivery
from processors.replay.log import LogRange
from processors.replay.progress import Offsets
from processors.replay.selection import Selection
from schemas.topics import AGENT_EVENTS


@dataclass(frozen=True)
class TopicLog:
    """A topic of the broker."""

    bootstrap_servers: str
    name: str = AGENT_EVENTS

    def bounds(self, selection: Selection) -> tuple[Offsets, Offsets]:
        """First offset, and offset after the last, of each partition that the selection reads.

        Raises:
            LogAway: no broker answers, or it has no such topic.
            ValueError: a time is not ISO 8601, or a partition is none of the topic.
        """
        with LogRange(self.bootstrap_servers, self.name) as log:
            starts, ends = log.bounds(moment(selection.since, "since"), moment(selection.until, "until"))
        if selection.offsets is None:
            return starts, ends
        asked = {_partition(name, starts): bounds for name, bounds in selection.offsets.items()}
        first = {p: asked[p][0] if p in asked else starts[p] for p in starts}
        last = {p: min(asked[p][1], ends[p]) if p in asked else first[p] for p in starts}
        return first, {p: max(first[p], last[p]) for p in first}

    def read(
        self, starts: Mapping[int, int], ends: Mapping[int, int], stop: threading.Event
    ) -> Iterator[tuple[Delivery, float]]:
        """See `processors.replay.log.LogRange.read`; times in seconds."""
        with LogRange(self.bootstrap_servers, self.name) as log:
            for delivery, milliseconds in log.read(starts, ends, stop):
                yield delivery, milliseconds / 1000.0


def moment(text: str | None, name: str) -> datetime | None:
    """An ISO 8601 time; without an offset it is UTC.

    Raises:
        ValueError: it is none.
    """
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}; write a time as 2026-11-30 or 2026-11-30T18:00:00+01:00") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _partition(name: str, known: Mapping[int, int]) -> int:
    if not name.isdigit() or int(name) not in known:
        raise ValueError(f"offsets: there is no partition {name!r}; there are {', '.join(map(str, sorted(known)))}")
    return int(name)
