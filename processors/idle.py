"""Sessions that fell silent: closed by an event, so that their last turn need not wait for ever."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from processors.health import Health
from processors.inserting import insert_new
from processors.patience import Pause
from processors.transactions import Transactions
from schemas import tables
from schemas.database import in_words, is_transient
from schemas.digests import content_id
from schemas.envelope import encode, new_event
from schemas.events import SESSION_CLOSED, SessionClosed
from schemas.topics import AGENT_EVENTS

SOURCE = "hindstream/worker"
"""`ce_source` of what workers write; the relay adds it to every message of the outbox."""

_log = logging.getLogger(__name__)

_AT_ONCE = 500
"""Sessions closed in one transaction: enough to catch up after an outage in a few rounds, and a statement of
milliseconds."""

SILENT = """
WITH waiting AS (
    SELECT DISTINCT t.session_id FROM runs r
    JOIN samples s ON s.run = r.run AND r.kind = 'live' AND (
        s.state = 'pending'
        OR (s.state = 'dropped' AND s.drop_reason <> 'no_next_state'
            AND s.created_at > now() - %(look_back)s * make_interval(secs => %(ttl)s)))
    JOIN turns t ON t.turn_id = s.turn_id
    WHERE NOT s.linked AND NOT EXISTS (SELECT 1 FROM turn_completions c WHERE c.turn_id = s.turn_id)
), newest AS (
    SELECT t.session_id, max(t.created_at) AS at,
           (array_agg(t.turn_id ORDER BY t.created_at DESC, t.turn_id))[1] AS turn_id
    FROM turns t JOIN waiting USING (session_id)
    GROUP BY t.session_id
)
SELECT n.session_id, n.turn_id FROM newest n
WHERE n.at < clock_timestamp() - make_interval(secs => %(ttl)s)
  AND NOT EXISTS (SELECT 1 FROM next_states x WHERE x.session_id = n.session_id
                  AND x.created_at >= clock_timestamp() - make_interval(secs => %(ttl)s))
ORDER BY n.at
LIMIT %(limit)s
"""
"""Sessions with an incomplete turn that some run wants to have judged and nothing recorded within the time to live, by
the database's clock.

A session that was closed with counts which never came true is among them: what it promised is lost, or late, and its
turns are judged by what there is. Turns that cannot be trained but judged are looked for only among the recent
samples: they are never pending, and the dropped ones of all time are too many to read every minute.
"""

_LOOK_BACK = 10
"""How many times the time to live an untrainable turn is looked for; an outage longer than that leaves it unjudged."""


@dataclass(frozen=True, kw_only=True)
class IdleConfig:
    """A session silent for `idle_s` seconds is closed; silent ones are looked for every `every_s` seconds."""

    idle_s: float
    every_s: float


def close_idle(connection: Connection, *, idle_s: float) -> int:
    """Put a `session.closed` (reason `idle`) into the outbox for each session silent for `idle_s` seconds.

    Its id is made of the session and its newest turn, so workers that find the same session write one event, and a
    session that goes on and falls silent again gets another. Returns how many were written.
    """
    silent = connection.exec_driver_sql(SILENT, {"ttl": idle_s, "limit": _AT_ONCE, "look_back": _LOOK_BACK}).all()
    rows = []
    for session_id, turn_id in silent:
        event_id = content_id("idle", session_id, turn_id)
        record = encode(new_event(SessionClosed(session_id=session_id, reason="idle"), id=event_id, source=SOURCE))
        rows.append(
            {
                "topic": AGENT_EVENTS,
                "message_id": event_id,
                "message_type": SESSION_CLOSED,
                "key": session_id,
                "value": record.value,
            }
        )
    return len(insert_new(connection, tables.outbox, rows, returning=("message_id",)))


async def run_idle(config: IdleConfig, engine: Engine, stop: asyncio.Event, health: Health) -> None:
    """Close silent sessions until `stop`; a database that is away is waited for.

    Raises:
        SQLAlchemyError: the database refuses for a reason that does not pass.
    """
    transactions = Transactions(engine, threads=1, name="idle")
    pause = Pause(stop, health, "idle")
    try:
        while not stop.is_set():
            try:
                closed = await transactions.run(close_idle, idle_s=config.idle_s)
                pause.succeeded()
            except SQLAlchemyError as err:
                if not is_transient(err):
                    raise
                await pause.after_fault(in_words(err))
                continue
            if closed:
                _log.info("%d sessions were silent for %.0f s and are closed", closed, config.idle_s)
            if closed < _AT_ONCE:
                await pause.wait(config.every_s)
    finally:
        transactions.close()
