"""One session erased, in one transaction; again, it finds nothing to do."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection

from processors.erasing.announced import empty_letters, empty_signals, letters_of, wordy_signals
from processors.erasing.contents import CONTENTS, ERASED, TURNS, count, empty
from processors.sessions import lock_sessions
from schemas.states import DROP_REASONS, EVALUATION_TRANSITIONS, SAMPLE_TRANSITIONS, must_follow

_MARK = """
INSERT INTO sessions (session_id, close_reason, closed_at) VALUES (%(session)s, 'erased', now())
ON CONFLICT (session_id) DO UPDATE SET close_reason = 'erased', closed_at = coalesce(sessions.closed_at, now())
WHERE sessions.close_reason IS DISTINCT FROM 'erased'
"""

_LOCK_EVALUATIONS = f"SELECT 1 FROM evaluations WHERE turn_id IN {TURNS} ORDER BY run, turn_id, signal FOR UPDATE"
"""Who finishes one at this moment is waited for, so that what he writes is there to be emptied; nobody begins."""
_LOCK_SAMPLES = f"SELECT 1 FROM samples WHERE turn_id IN {TURNS} ORDER BY sample_id FOR UPDATE"

_CANCEL = f"""
UPDATE evaluations SET state = CASE WHEN state = 'waiting' THEN 'done' ELSE 'failed' END, reason = '{ERASED}',
       worker = NULL, lease_until = NULL, available_at = NULL, finished_at = now()
WHERE turn_id IN {TURNS} AND state IN ('waiting', 'open', 'claimed')
"""
"""Who holds a claim finds it lost, and writes nothing."""

_DROP = f"""
UPDATE samples SET state = 'dropped', drop_reason = '{ERASED}', drop_detail = %(detail)s, linked = true,
       updated_at = now()
WHERE turn_id IN {TURNS} AND state IN ('pending', 'ready')
"""
"""Not those of a published micro-batch: what is announced is never changed. The learner drops them at their use."""

_LINKED = f"UPDATE samples SET linked = true WHERE turn_id IN {TURNS} AND NOT linked"
"""Or the next look at the session would open evaluations of them."""

_ANSWERS = f"""
FROM model_answers WHERE session_id = %(session)s OR answer_digest IN (
    SELECT answer_digest FROM votes WHERE turn_id IN {TURNS}
    UNION SELECT answer_digest FROM teacher_scores WHERE turn_id IN {TURNS})
"""
"""Rows that go whole: an answer without its words would be taken for one. Who asks the same again, pays again."""

_DONE = "UPDATE sessions SET erased_at = now() WHERE session_id = %(session)s AND erased_at IS NULL"


def erased_sessions(connection: Connection, session_ids: Iterable[str]) -> set[str]:
    """Those of the sessions that are to be erased, or are. Ask it under their locks: then it stays so."""
    wanted = [session_id for session_id in session_ids if "\x00" not in session_id]
    if not wanted:
        return set()
    return set(
        connection.exec_driver_sql(
            "SELECT session_id FROM sessions WHERE session_id = ANY(%(ids)s) AND close_reason = 'erased'",
            {"ids": wanted},
        ).scalars()
    )


def mark_erased(connection: Connection, session_id: str) -> None:
    """From this transaction's commit on nothing of the session is recorded any more. Its contents are still there."""
    lock_sessions(connection, [session_id])
    connection.exec_driver_sql(_MARK, {"session": session_id})


def erase_session(connection: Connection, session_id: str) -> dict[str, int]:
    """Remove the session's contents, in the caller's transaction: cancel its evaluations, drop its samples, empty its
    rows. Returns how many rows of each table held something."""
    mark_erased(connection, session_id)
    values = {"session": session_id, "detail": DROP_REASONS[ERASED]}
    for before in ("pending", "ready"):
        must_follow(SAMPLE_TRANSITIONS, before, "dropped")
    for before, after in (("waiting", "done"), ("open", "failed"), ("claimed", "failed")):
        must_follow(EVALUATION_TRANSITIONS, before, after)
    for lock in (_LOCK_EVALUATIONS, _LOCK_SAMPLES):
        connection.exec_driver_sql(lock, values)
    rows = {contents.table: empty(connection, contents, session_id) for contents in CONTENTS}
    rows["evaluations cancelled"] = connection.exec_driver_sql(_CANCEL, values).rowcount
    rows["samples dropped"] = connection.exec_driver_sql(_DROP, values).rowcount
    connection.exec_driver_sql(_LINKED, values)
    rows["model_answers"] = connection.exec_driver_sql(f"DELETE {_ANSWERS}", values).rowcount
    rows["dead_letters"] = empty_letters(connection, letters_of(connection, session_id))
    rows["outbox"] = empty_signals(connection, session_id)
    connection.exec_driver_sql(_DONE, values)
    return rows


def contents_of(connection: Connection, session_id: str) -> dict[str, int]:
    """What `erase_session` would return, with nothing changed."""
    values = {"session": session_id}

    def counted(what: str) -> int:
        return int(connection.exec_driver_sql(f"SELECT count(*) {what}", values).scalar_one())

    open_, untrained = "('waiting', 'open', 'claimed')", "('pending', 'ready')"
    rows = {
        "evaluations cancelled": counted(f"FROM evaluations WHERE turn_id IN {TURNS} AND state IN {open_}"),
        "samples dropped": counted(f"FROM samples WHERE turn_id IN {TURNS} AND state IN {untrained}"),
        "model_answers": counted(_ANSWERS),
        "dead_letters": len(letters_of(connection, session_id)),
        "outbox": len(wordy_signals(connection, session_id)),
    }
    return rows | {contents.table: count(connection, contents, session_id) for contents in CONTENTS}
