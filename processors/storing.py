"""Storing: what could be read becomes events, facts and samples; each item is new, a repeat, a conflict or refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.exc import DBAPIError

from processors.dead_letters import CONFLICT, DeadLetter, Delivery
from processors.inserting import insert_new
from processors.rows import Row
from processors.sessions import insert_sessions
from processors.trainable import NEVER_JUDGED, Drop, of_another_policy, untrainable
from schemas import tables
from schemas.database import in_words, is_refused
from schemas.digests import sample_id
from schemas.envelope import Event
from schemas.events import FeedbackGiven, NextStateObserved, TurnRecorded
from schemas.topics import AGENT_EVENTS

_FACTS: dict[type, tuple[Table, str]] = {
    TurnRecorded: (tables.turns, "turn_id"),
    NextStateObserved: (tables.next_states, "next_state_id"),
    FeedbackGiven: (tables.feedback, "feedback_id"),
}


@dataclass(eq=False)
class Item:
    """A delivery that could be read."""

    delivery: Delivery
    event: Event
    digest: str
    row: Row | None
    drop: Drop | None


@dataclass
class Batch:
    """Deliveries on their way into the tables; each ends in exactly one of the last four."""

    items: list[Item]
    new: list[Item] = field(default_factory=list)
    duplicates: int = 0
    conflicts: list[DeadLetter] = field(default_factory=list)
    refused: list[DeadLetter] = field(default_factory=list)


def store(connection: Connection, items: list[Item], *, log: str = AGENT_EVENTS) -> Batch:
    """Insert events, sessions, facts and samples of `items`, which `log` brought.

    What Postgres refuses (a number out of range, a key too long for its index) fails the whole statement, so then
    each item goes alone and the guilty ones become dead letters.
    """
    try:
        with connection.begin_nested():
            return _together(connection, items, log)
    except DBAPIError as err:
        if not is_refused(err):
            raise
    whole = Batch(items)
    for item in items:
        try:
            with connection.begin_nested():
                one = _together(connection, [item], log)
        except DBAPIError as err:
            if not is_refused(err):
                raise
            whole.refused.append(DeadLetter(item.delivery, type(err.orig).__name__, in_words(err)))
        else:
            whole.new += one.new
            whole.duplicates += one.duplicates
            whole.conflicts += one.conflicts
    return whole


def _together(connection: Connection, items: list[Item], log: str) -> Batch:
    batch = Batch(items)
    _insert_events(connection, batch)
    insert_sessions(connection, [item.event.data for item in batch.new])
    for kind in _FACTS:
        _insert_facts(connection, batch, kind, log)
    if log == AGENT_EVENTS:  # live runs follow the topic; what a replay reads from files is its own affair
        _open_samples(connection, [item for item in batch.new if isinstance(item.event.data, TurnRecorded)])
    return batch


def event_row(item: Item) -> Row:
    """The row of `events`."""
    dataref = next((value for name, value in item.delivery.headers if name == "ce_dataref"), None)
    return {
        "source": item.event.source,
        "event_id": item.event.id,
        "type": item.event.type,
        "session_id": item.event.data.session_id,
        "content_digest": item.digest,
        "topic": item.delivery.topic,
        "partition": item.delivery.partition,
        "record_offset": item.delivery.offset,
        "dataref": None if dataref is None else dataref.decode("utf-8"),
    }


def _insert_events(connection: Connection, batch: Batch) -> None:
    """Tell new events from repeats and conflicts, by (source, id) and digest."""
    rows = [event_row(item) for item in batch.items]
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


def _known_digests(connection: Connection, items: list[Item]) -> dict[tuple[str, str], str]:
    if not items:
        return {}
    found = connection.exec_driver_sql(
        "SELECT source, event_id, content_digest FROM events "
        "JOIN unnest(%(sources)s::text[], %(ids)s::text[]) AS wanted(source, event_id) USING (source, event_id)",
        {"sources": [item.event.source for item in items], "ids": [item.event.id for item in items]},
    )
    return {(source, event_id): digest for source, event_id, digest in found}


def _insert_facts(connection: Connection, batch: Batch, kind: type, log: str) -> None:
    """Insert the facts of one kind. A fact whose own id another event has taken is a repeat where it says the same,
    else a conflict; its event stays recorded, so that it is told once."""
    table, key = _FACTS[kind]
    candidates = [item for item in batch.new if isinstance(item.event.data, kind)]
    rows = [item.row for item in candidates if item.row is not None]
    if kind is TurnRecorded:
        rows = [{**row, "log": log} for row in rows]
    fresh = {row[0] for row in insert_new(connection, table, rows, returning=(key,))}
    taken: list[Item] = []
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


def _open_samples(connection: Connection, turns: list[Item]) -> None:
    """A sample for each new turn in each active live run, dropped at once where the turn can never be trained.

    The runs are read after the turns are inserted, in a statement of its own: `processors.runs.ensure_run` takes a
    lock on `turns`, so a run that starts meanwhile is either seen here or starts after these turns.
    """
    if not turns:
        return
    runs = connection.exec_driver_sql(
        "SELECT run, policy, coalesce(recipe -> 'batch' ->> 'tokens' = 'text', false) AS text FROM runs "
        "WHERE ended_at IS NULL AND kind = 'live' ORDER BY run"
    ).all()
    rows = [_sample(row.run, row.policy, item, text=row.text) for row in runs for item in turns]
    insert_new(connection, tables.samples, rows)


def _sample(run: str, policy: str, item: Item, *, text: bool) -> Row:
    turn = item.event.data
    assert isinstance(turn, TurnRecorded)
    drop = (untrainable(turn, text=True) if text else item.drop) or of_another_policy(turn, policy)
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
