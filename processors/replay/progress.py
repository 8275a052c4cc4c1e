"""How far a replay is: its row in `replays`, and the counts that say what is left to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection

from processors.inserting import insert_new
from processors.replay.selection import Selection
from schemas import tables
from schemas.states import STOP_AFTER

Offsets = dict[int, int]
"""Offset by partition."""


class ReplayMismatch(ValueError):
    """A replay of this name exists and reads something else: what differs, and what to do."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """What a replay reads: `log` from `starts` up to `ends`, of which `selection` takes a part."""

    log: str
    starts: Offsets
    ends: Offsets
    selection: Selection


@dataclass(frozen=True, kw_only=True)
class Place:
    """How far the reading is: the next offset of each partition. `turns`: taken so far; `read`: nothing is left."""

    next: Offsets
    turns: int
    read: bool


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What a replay has made so far. `asked`, `answered`: evaluations that there are, and those that are final;
    `rewards_open`: of rewards those that are not; `batched`, `trained`: micro-batches made and consumed."""

    records: int
    records_total: int
    turns: int
    asked: int
    answered: int
    rewards_open: int
    batched: int
    trained: int


def begin(connection: Connection, run: str, wanted: Range, stop_after: str) -> bool:
    """Have the replay's row, in the caller's transaction; its run is there already. Returns whether it was made now.

    A replay that exists goes on with the range that it began with, and as far as is asked now.

    Raises:
        ReplayMismatch: it exists and reads another log, or was asked for another part of it.
    """
    found = connection.exec_driver_sql(
        "SELECT log, selection, stop_after FROM replays WHERE run = %(run)s FOR UPDATE", {"run": run}
    ).one_or_none()
    if found is None:
        insert_new(
            connection,
            tables.replays,
            [
                {
                    "run": run,
                    "log": wanted.log,
                    "starts": _plain(wanted.starts),
                    "ends": _plain(wanted.ends),
                    "next": _plain(wanted.starts),
                    "selection": msgspec.to_builtins(wanted.selection),
                    "stop_after": stop_after,
                }
            ],
        )
        return True
    asked = msgspec.convert(found.selection, Selection)
    differs = []
    if found.log != wanted.log:
        differs.append(f"it reads {found.log}, not {wanted.log}")
    if asked != wanted.selection:
        differs.append(f"it was asked for {_in_words(asked)}, not {_in_words(wanted.selection)}")
    if differs:
        raise ReplayMismatch(f"replay {run!r} exists and {'; '.join(differs)}: choose another name")
    if STOP_AFTER.index(stop_after) > STOP_AFTER.index(found.stop_after):
        connection.exec_driver_sql(
            "UPDATE replays SET stop_after = %(stop_after)s, finished_at = NULL WHERE run = %(run)s",
            {"run": run, "stop_after": stop_after},
        )
    return False


def range_of(connection: Connection, run: str) -> tuple[Range, Place]:
    """The range of a replay, and how far it was read."""
    row = connection.exec_driver_sql("SELECT * FROM replays WHERE run = %(run)s", {"run": run}).one()
    selection = msgspec.convert(row.selection, Selection)
    whole = Range(log=row.log, starts=_offsets(row.starts), ends=_offsets(row.ends), selection=selection)
    return whole, Place(next=_offsets(row.next), turns=row.turns_seen, read=row.read)


def advance(connection: Connection, run: str, next_: Mapping[int, int], turns: int) -> None:
    """The offsets before `next_` are taken, and `turns` more turns with them."""
    connection.exec_driver_sql(
        "UPDATE replays SET next = %(next)s::jsonb, turns_seen = turns_seen + %(turns)s WHERE run = %(run)s",
        {"run": run, "next": msgspec.json.encode(_plain(next_)).decode(), "turns": turns},
    )


def mark_read(connection: Connection, run: str) -> None:
    """The whole range is taken."""
    connection.exec_driver_sql("UPDATE replays SET read = true, next = ends WHERE run = %(run)s", {"run": run})


def finish(connection: Connection, run: str) -> None:
    """All that was asked for is done."""
    connection.exec_driver_sql(
        "UPDATE replays SET finished_at = coalesce(finished_at, now()) WHERE run = %(run)s", {"run": run}
    )


def counts(connection: Connection, run: str) -> Counts:
    """What there is of a replay now."""
    row = connection.exec_driver_sql(_COUNTS, {"run": run}).one()
    starts, ends, next_ = _offsets(row.starts), _offsets(row.ends), _offsets(row.next)
    return Counts(
        records=sum(next_.values()) - sum(starts.values()),
        records_total=sum(ends.values()) - sum(starts.values()),
        turns=row.turns_seen,
        asked=row.asked,
        answered=row.answered,
        rewards_open=row.rewards_open,
        batched=row.batched,
        trained=row.trained,
    )


_COUNTS = """
SELECT p.starts, p.ends, p.next, p.turns_seen, e.asked, e.answered, e.rewards_open, b.batched, b.trained
FROM replays p
CROSS JOIN LATERAL (
    SELECT count(*) AS asked, count(*) FILTER (WHERE state IN ('done', 'failed')) AS answered,
           count(*) FILTER (WHERE signal = 'reward' AND state NOT IN ('done', 'failed')) AS rewards_open
    FROM evaluations WHERE run = p.run
) e
CROSS JOIN LATERAL (
    SELECT count(*) AS batched, count(*) FILTER (WHERE state = 'consumed') AS trained
    FROM micro_batches WHERE run = p.run
) b
WHERE p.run = %(run)s
"""


def _plain(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def _offsets(plain: Mapping[str, Any]) -> Offsets:
    return {int(partition): int(offset) for partition, offset in plain.items()}


def _in_words(selection: Selection) -> str:
    set_ = {name: value for name, value in msgspec.structs.asdict(selection).items() if value is not None}
    return ", ".join(f"{name} {value}" for name, value in set_.items())
