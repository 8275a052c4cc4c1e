"""The steps of an erasure, each of which may be the last before a kill: done again, they come to the same end.

First the log is told, so that whatever else reads it leaves the session out. Then nothing of it is recorded any more.
What lies outside the database goes before what says where it lies.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from hindstream.erasing.finding import Found
from processors.erasing.session import erase_session, mark_erased
from schemas.claim_check import BlobStore
from schemas.database import is_transient
from schemas.digests import content_id
from schemas.envelope import Event, encode, new_event
from schemas.events import SessionClosed
from schemas.publish import AckedPublisher
from schemas.topics import AGENT_EVENTS

SOURCE = "hindstream/erase"
_TRIES, _WAIT_S = 10, 0.5
"""Workers hold a session for milliseconds; a deadlock with one of them passes as well."""

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Eraser:
    """What an erasure needs. `after` is told each step that is done (tests end the process there)."""

    engine: Engine
    publisher: AckedPublisher
    blobs: BlobStore
    after: Callable[[str], None] = lambda step: None

    def erase(self, found: Found) -> dict[str, int]:
        """Erase one session; returns how many rows of each table held something, and claim checks that were there.

        Raises:
            PublishFailed: the broker did not take the tombstone; nothing was changed.
            SQLAlchemyError: the database failed; run it again.
        """
        session_id = found.session_id
        self.publisher.publish(AGENT_EVENTS, [encode(tombstone(session_id))])
        self.after("published")
        self._transaction(lambda connection: mark_erased(connection, session_id))
        self.after("marked")
        deleted = sum(self.blobs.delete(reference) for reference in found.datarefs)
        self.after("claim checks")
        rows = self._transaction(lambda connection: erase_session(connection, session_id))
        self.after("erased")
        return rows | {"claim checks": deleted}

    def _transaction(self, work: Callable[[Connection], _T]) -> _T:
        left = _TRIES
        while True:
            try:
                with self.engine.begin() as connection:
                    return work(connection)
            except SQLAlchemyError as err:
                left -= 1
                if not left or not is_transient(err):
                    raise
            time.sleep(_WAIT_S)


def tombstone(session_id: str) -> Event:
    """The event that tells every reader of the log to leave the session out; the same one each time."""
    closed = SessionClosed(session_id=session_id, reason="erased")
    return new_event(closed, id=content_id("erased", session_id), source=SOURCE)
