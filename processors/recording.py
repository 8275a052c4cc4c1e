"""Recording: a batch of deliveries becomes rows, in one transaction, the same rows however often it is delivered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from processors import dead_letters
from processors.dead_letters import DeadLetter, Delivery
from processors.erasing.late import is_tombstone, key_of, leave_out, not_of
from processors.erasing.session import erase_session, erased_sessions
from processors.flood import FloodGate
from processors.linking import link
from processors.rows import Row, feedback_row, next_state_row, turn_row
from processors.sessions import lock_sessions
from processors.storing import Item, store
from processors.trainable import Drop, untrainable
from schemas.claim_check import BlobStore
from schemas.envelope import Event, decode
from schemas.events import FeedbackGiven, NextStateObserved, TurnRecorded
from schemas.topics import AGENT_EVENTS


@dataclass(frozen=True)
class Outcome:
    """What became of a batch: each delivery is counted once."""

    recorded: int
    duplicates: int
    conflicts: int
    unreadable: int
    erased: int = 0
    """Came when their session had been erased."""

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.recorded + other.recorded,
            self.duplicates + other.duplicates,
            self.conflicts + other.conflicts,
            self.unreadable + other.unreadable,
            self.erased + other.erased,
        )


def record(
    connection: Connection,
    deliveries: Sequence[Delivery],
    *,
    blobs: BlobStore | None = None,
    gate: FloodGate | None = None,
    log: str = AGENT_EVENTS,
) -> Outcome:
    """Record `deliveries` and link their sessions, in the caller's transaction.

    A repeat changes nothing, in the same batch or another. An id that comes again with other content leaves the first
    as it is and becomes a dead letter, as does what cannot be read, or what Postgres refuses: the others go in. Live
    runs see only what the `log` agent-events brings.

    An event that says that its session is erased erases it, here and at once, and what comes of that session then,
    before it or after it in the batch, is known by its id and left out. Readable or not, no copy of it is kept.

    Raises:
        TooManyDeadLetters: `gate` counts too many unreadable ones; the transaction must be rolled back.
        OSError: a claim check could not be fetched for a reason that may pass.
        DBAPIError: the database failed; nothing is recorded until the caller commits.
    """
    items, letters = _read(deliveries, blobs)
    sessions = {item.event.data.session_id for item in items} | {key_of(letter.delivery) for letter in letters}
    lock_sessions(connection, sessions)
    tombstones = {item.event.data.session_id for item in items if is_tombstone(item.event)}
    erased = tombstones | erased_sessions(connection, sessions)
    late = [item for item in items if item.event.data.session_id in erased and not is_tombstone(item.event)]
    left_out = leave_out(connection, late, blobs)
    batch = store(connection, [item for item in items if item not in set(late)] if late else items, log=log)
    unread = len(letters)
    letters = not_of(letters, erased)
    left_out_unread = unread - len(letters)
    for session_id in sorted(tombstones):
        erase_session(connection, session_id)
    letters += batch.refused
    if gate is not None:
        gate.seed(connection, deliveries)
        places = {(one.delivery.topic, one.delivery.partition, one.delivery.offset) for one in letters}
        unreadable = {i for i, d in enumerate(deliveries) if (d.topic, d.partition, d.offset) in places}
        counts = gate.check(deliveries, unreadable)
    dead_letters.write(connection, letters + batch.conflicts)
    if batch.new:
        link(connection, {item.event.data.session_id for item in batch.new} - erased)
    if gate is not None:
        gate.counts = counts
    return Outcome(
        len(batch.new),
        batch.duplicates + len(late) - left_out,
        len(batch.conflicts),
        len(letters),
        left_out + left_out_unread,
    )


def _read(deliveries: Sequence[Delivery], blobs: BlobStore | None) -> tuple[list[Item], list[DeadLetter]]:
    """What could be read, and a dead letter for each that could not."""
    items: list[Item] = []
    letters: list[DeadLetter] = []
    for delivery in deliveries:
        try:
            items.append(_item(delivery, decode(delivery.value, delivery.headers, blobs)))
        except (OSError, MemoryError):  # the blob store or this machine, which is no fault of the record
            raise
        except Exception as err:  # whatever else a record makes go wrong is its own fault: it is kept, with the name
            letters.append(DeadLetter(delivery, type(err).__name__, str(err) or repr(err)))
    return items, letters


def _item(delivery: Delivery, event: Event) -> Item:
    data = event.data
    row: Row | None = None
    drop: Drop | None = None
    if isinstance(data, TurnRecorded):
        row, drop = turn_row(event, data), untrainable(data)
    elif isinstance(data, NextStateObserved):
        row = next_state_row(event, data)
    elif isinstance(data, FeedbackGiven):
        row = feedback_row(event, data)
    return Item(delivery, event, event.content_digest(), row, drop)
