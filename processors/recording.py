"""Recording: a batch of deliveries becomes rows, in one transaction, the same rows however often it is delivered."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.exc import DBAPIError

from processors import dead_letters
from processors.database import in_words, is_refused
from processors.dead_letters import CONFLICT, DeadLetter, Delivery, FloodGate
from processors.inserting import insert_new
from processors.linking import link
from processors.rows import Row, feedback_row, next_state_row, turn_row
from processors.trainable import NEVER_JUDGED, Drop, untrainable
from schemas import tables
from schemas.claim_check import BlobStore
from schemas.digests import sample_id
from schemas.envelope import Event, decode
from schemas.events import FeedbackGiven, NextStateObserved, SessionClosed, TurnRecorded

CLOSE_RANK = ("idle", "done", "erased")
"""Of several closing events the strongest reason stays, whichever came first."""

_FACTS: dict[type, tuple[Table, str]] = {
    TurnRecorded: (tables.turns, "turn_id"),
    NextStateObserved: (tables.next_states, "next_state_id"),
    FeedbackGiven: (tables.feedback, "feedback_id"),
}


@dataclass(frozen=True)
class Outcome:
    """What became of a batch: each delivery is counted once."""

    recorded: int
    duplicates: int
    conflicts: int
    unreadable: int

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.recorded + other.recorded,
            self.duplicates + other.duplicates,
            self.conflicts + other.conflicts,
            self.unreadable + other.unreadable,
        )


@dataclass(eq=False)
class _Item:
    """A delivery that could be read."""

    delivery: Delivery
    event: Event
    digest: str
    row: Row | None
    drop: Drop | None


@dataclass
class _Batch:
    """Deliveries on their way into the tables; each ends in exactly one of the last four."""

    items: list[_Item]
    new: list[_Item] = field(default_factory=list)
    duplicates: int = 0
    conflicts: list[DeadLetter] = field(default_factory=list)
    refused: list[DeadLetter] = field(default_factory=list)


def record(
    connection: Connection,
    deliveries: Sequence[Delivery],
    *,
    blobs: BlobStore | None = None,
    gate: FloodGate | None = None,
) -> Outcome:
    """Record `deliveries` and link their sessions, in the caller's transaction.

    A repeat changes nothing, in the same batch or another. An id that comes again with other content leaves the first
    as it is and becomes a dead letter, as does what cannot be read, or what Postgres refuses: the others go in.

    Raises:
        TooManyDeadLetters: `gate` counts too many unreadable ones in a row; the transaction must be rolled back.
        OSError: a claim check could not be fetched for a reason that may pass.
        DBAPIError: the database failed; nothing is recorded until the caller commits.
    """
    items, letters = _read(deliveries, blobs)
    lock_sessions(connection, (item.event.data.session_id for item in items))
    batch = _store(connection, items)
    letters += batch.refused
    if gate is not None:
        gate.seed(connection, deliveries)
        places = {(one.delivery.topic, one.delivery.partition, one.delivery.offset) for one in letters}
        unreadable = {i for i, d in enumerate(deliveries) if (d.topic, d.partition, d.offset) in places}
        counts = gate.check(deliveries, unreadable)
    dead_letters.write(connection, letters + batch.conflicts)
    if batch.new:
        link(connection, {item.event.data.session_id for item in batch.new})
    if gate is not None:
        gate.runs = counts
    return Outcome(len(batch.new), batch.duplicates, len(batch.conflicts), len(letters))


def lock_sessions(connection: Connection, session_ids: Iterable[str]) -> None:
    """Hold the sessions until the transaction ends.

    After a rebalance two workers can hold events of one session at the same time. Each would see a completeness that
    misses the other's uncommitted rows, and a turn could stay incomplete for ever; so they take turns. The locks are
    taken in sorted order: two batches with the same sessions cannot wait for each other.
    """
    keys = sorted({_lock_key(session_id) for session_id in session_ids})
    if keys:
        connection.exec_driver_sql(
            "SELECT count(pg_advisory_xact_lock(key)) FROM unnest(%(keys)s::bigint[]) AS locks(key)", {"keys": keys}
        )


def _lock_key(session_id: str) -> int:
    digest = hashlib.sha256(b"hindstream.session:" + session_id.encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _read(deliveries: Sequence[Delivery], blobs: BlobStore | None) -> tuple[list[_Item], list[DeadLetter]]:
    """What could be read, and a dead letter for each that could not."""
    items: list[_Item] = []
    letters: list[DeadLetter] = []
    for delivery in deliveries:
        try:
            items.append(_item(delivery, decode(delivery.value, delivery.headers, blobs)))
        except (OSError, MemoryError):  # the blob store or this machine, which is no fault of the record
            raise
        except Exception as err:  # whatever else a record makes go wrong is its own fault: it is kept, with the name
            letters.append(DeadLetter(delivery, type(err).__name__, str(err) or repr(err)))
    return items, letters


def _item(delivery: Delivery, event: Event) -> _Item:
    data = event.data
    row: Row | None = None
    drop: Drop | None = None
    if isinstance(data, TurnRecorded):
        row, drop = turn_row(event, data), untrainable(data)
    elif isinstance(data, NextStateObserved):
        row = next_state_row(event, data)
    elif isinstance(data, FeedbackGiven):
        row = feedback_row(event, data)
    return _Item(delivery, event, event.content_digest(), row, drop)


def _store(connection: Connection, items: list[_Item]) -> _Batch:
    """Insert events, sessions, facts and samples of `items`.

    What Postgres refuses (a number out of range, a key too long for its index) fails the whole statement, so then
    each item goes alone and the guilty ones become dead letters.
    """
    try:
        with connection.begin_nested():
            return _store_together(connection, items)
    except DBAPIError as err:
        if not is_refused(err):
            raise
    whole = _Batch(items)
    for item in items:
        try:
            with connection.begin_nested():
                one = _store_together(connection, [item])
        except DBAPIError as err:
            if not is_refused(err):
                raise
            whole.refused.append(DeadLetter(item.delivery, type(err.orig).__name__, in_words(err)))
        else:
            whole.new += one.new
            whole.duplicates += one.duplicates
            whole.conflicts += one.conflicts
    return whole


def _store_together(connection: Connection, items: list[_Item]) -> _Batch:
    batch = _Batch(items)
    _insert_events(connection, batch)
    _insert_sessions(connection, [item.event.data for item in batch.new])
    for kind in _FACTS:
        _insert_facts(connection, batch, kind)
    _open_samples(connection, [item for item in batch.new if isinstance(item.event.data, TurnRecorded)])
    return batch


def _insert_events(connection: Connection, batch: _Batch) -> None:
    """Tell new events from repeats and conflicts, by (source, id) and digest."""
    rows = [
        {
            "source": item.event.source,
            "event_id": item.event.id,
            "type": item.event.type,
            "session_id": item.event.data.session_id,
            "content_digest": item.digest,
            "topic": item.delivery.topic,
            "partition": item.delivery.partition,
            "record_offset": item.delivery.offset,
        }
        for item in batch.items
    ]
    inserted = insert_new(connection, tables.events, rows, returning=("source", "event_id"))
    fresh: set[tuple[str, str]] = {(row[0], row[1]) for row in inserted}
    first = {(item.event.source, item.event.id): item for item in reversed(batch.items)}
    repeats = [item for key, item in first.items() if key not in fresh]
    known = {key: first[key].digest for key in fresh} | _known_digests(connection, repeats)
    for item in batch.items:
        key = (item.event.source, item.event.id)
        if key in fresh and item is first[key]:
            batch.new.append(item)
        elif known[key] == item.digest:
            batch.duplicates += 1
        else:
            batch.conflicts.append(
                DeadLetter(
                    item.delivery,
                    CONFLICT,
                    f"{item.event.type} {item.event.id} of {item.event.source} is recorded with digest {known[key]}; "
                    f"this one has {item.digest}: the first stays",
                )
            )


def _known_digests(connection: Connection, items: list[_Item]) -> dict[tuple[str, str], str]:
    if not items:
        return {}
    found = connection.exec_driver_sql(
        "SELECT source, event_id, content_digest FROM events "
        "JOIN unnest(%(sources)s::text[], %(ids)s::text[]) AS wanted(source, event_id) USING (source, event_id)",
        {"sources": [item.event.source for item in items], "ids": [item.event.id for item in items]},
    )
    return {(source, event_id): digest for source, event_id, digest in found}


def _insert_sessions(connection: Connection, data: Sequence[Any]) -> None:
    """A row for each session, and what the closing events say of it."""
    ids = sorted({one.session_id for one in data})
    insert_new(connection, tables.sessions, [{"session_id": session_id} for session_id in ids])
    closings: dict[str, SessionClosed] = {}
    for one in data:
        if isinstance(one, SessionClosed):
            before = closings.get(one.session_id)
            closings[one.session_id] = one if before is None else _merged(before, one)
    if not closings:
        return
    connection.exec_driver_sql(
        """
        UPDATE sessions s SET
            close_reason = CASE WHEN array_position(%(rank)s::text[], s.close_reason)
                                     > array_position(%(rank)s::text[], new.reason)
                                THEN s.close_reason ELSE new.reason END,
            expected_turns = CASE WHEN s.close_reason IS NULL THEN new.turns
                                  WHEN s.expected_turns IS NULL OR new.turns IS NULL THEN NULL
                                  ELSE greatest(s.expected_turns, new.turns) END,
            expected_next_states = CASE WHEN s.close_reason IS NULL THEN new.states
                                        WHEN s.expected_next_states IS NULL OR new.states IS NULL THEN NULL
                                        ELSE greatest(s.expected_next_states, new.states) END,
            closed_at = coalesce(s.closed_at, now())
        FROM unnest(%(ids)s::text[], %(reasons)s::text[], %(turns)s::integer[], %(states)s::integer[])
             AS new(session_id, reason, turns, states)
        WHERE s.session_id = new.session_id
        """,
        {
            "rank": list(CLOSE_RANK),
            "ids": list(closings),
            "reasons": [one.reason for one in closings.values()],
            "turns": [one.turns for one in closings.values()],
            "states": [one.next_states for one in closings.values()],
        },
    )


def _merged(one: SessionClosed, other: SessionClosed) -> SessionClosed:
    """Two closing events of one session as one, the same in either order; an unknown count stays unknown."""
    return SessionClosed(
        session_id=one.session_id,
        reason=max(one.reason, other.reason, key=CLOSE_RANK.index),
        turns=None if one.turns is None or other.turns is None else max(one.turns, other.turns),
        next_states=(
            None if one.next_states is None or other.next_states is None else max(one.next_states, other.next_states)
        ),
    )


def _insert_facts(connection: Connection, batch: _Batch, kind: type) -> None:
    """Insert the facts of one kind. A fact whose own id another event has taken is a repeat where it says the same,
    else a conflict; its event stays recorded, so that it is told once."""
    table, key = _FACTS[kind]
    candidates = [item for item in batch.new if isinstance(item.event.data, kind)]
    rows = [item.row for item in candidates if item.row is not None]
    fresh = {row[0] for row in insert_new(connection, table, rows, returning=(key,))}
    taken: list[_Item] = []
    for item in candidates:
        fact_id = getattr(item.event.data, key)
        if fact_id in fresh:
            fresh.discard(fact_id)  # the first of the batch was inserted; others with this id are not it
        else:
            taken.append(item)
    if not taken:
        return
    stored = {
        row[key]: row
        for row in connection.execute(
            table.select().where(table.c[key].in_({getattr(item.event.data, key) for item in taken}))
        ).mappings()
    }
    for item in taken:
        batch.new.remove(item)
        fact = stored[getattr(item.event.data, key)]
        if _says_the_same(item.row or {}, fact):
            batch.duplicates += 1
        else:
            batch.conflicts.append(
                DeadLetter(
                    item.delivery,
                    CONFLICT,
                    f"{key} {fact[key]} of event {item.event.id} was recorded by another event with other content: "
                    "the first stays",
                )
            )


def _says_the_same(row: Row, stored: Any) -> bool:
    """Where it was read from (`origin`, `raw`) aside."""
    return all(stored[name] == value for name, value in row.items() if name not in ("origin", "raw"))


def _open_samples(connection: Connection, turns: list[_Item]) -> None:
    """A sample for each new turn in each active run, dropped at once where the turn can never be trained.

    The runs are read after the turns are inserted, in a statement of its own: `processors.runs.ensure_run` takes a
    lock on `turns`, so a run that starts meanwhile is either seen here or starts after these turns.
    """
    if not turns:
        return
    runs = [run for (run,) in connection.exec_driver_sql("SELECT run FROM runs WHERE ended_at IS NULL ORDER BY run")]
    rows = [_sample(run, item) for run in runs for item in turns]
    insert_new(connection, tables.samples, rows)


def _sample(run: str, item: _Item) -> Row:
    turn, drop = item.event.data, item.drop
    assert isinstance(turn, TurnRecorded)
    return {
        "sample_id": sample_id(run, turn.turn_id),
        "run": run,
        "turn_id": turn.turn_id,
        "session_id": turn.session_id,
        "state": "dropped" if drop else "pending",
        "drop_reason": drop.reason if drop else None,
        "drop_detail": drop.detail if drop else None,
        "linked": drop is not None and drop.reason in NEVER_JUDGED,
    }
