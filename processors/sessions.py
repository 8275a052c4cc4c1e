"""Sessions: held by one transaction at a time, and closed by the same words whichever closing event comes first."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from sqlalchemy import Connection

from processors.inserting import insert_new
from schemas import tables
from schemas.events import EventData, SessionClosed

CLOSE_RANK = ("idle", "done", "erased")
"""Of several closing events the strongest reason stays, whichever came first."""


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


def insert_sessions(connection: Connection, data: Sequence[EventData]) -> None:
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
