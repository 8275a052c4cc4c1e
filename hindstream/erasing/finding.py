"""What there is of sessions that are to be erased: rows, records of the log, claim checks, and weights."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection

from learner.checkpoints import policy_dir
from processors.erasing.announced import letters_of, signals_sent
from processors.erasing.seen import InTraining, SeenBy, in_training, seen_by
from processors.erasing.session import contents_of
from schemas.digests import user_digest
from schemas.topics import DEAD_LETTERS, SIGNALS

_OF_USER = """
SELECT session_id FROM turns WHERE user_digest = ANY(%(digests)s) GROUP BY session_id ORDER BY min(created_at)
"""
_EVENTS = """
SELECT topic, partition, array_agg(record_offset ORDER BY record_offset) AS offsets, max(created_at) AS newest
FROM events WHERE session_id = %(session)s AND NOT (type LIKE 'hindstream.session.closed.%%')
GROUP BY topic, partition ORDER BY topic, partition
"""
"""An event that closes a session holds nothing that was said."""
_DATAREFS = "SELECT DISTINCT dataref FROM events WHERE session_id = %(session)s AND dataref IS NOT NULL"
_SESSION = "SELECT erased_at FROM sessions WHERE session_id = %(session)s"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Records of a session on one partition; `newest`: when the last one was recorded."""

    topic: str
    partition: int
    offsets: list[int]
    newest: datetime


@dataclass(frozen=True, kw_only=True)
class Found:
    """One session. `known`: there are rows of it; `rows`: how many of each table hold something; `datarefs`: claim
    checks; `copies`: messages about it that were sent to other topics."""

    session_id: str
    known: bool
    erased_at: datetime | None
    rows: dict[str, int]
    places: list[Place]
    datarefs: list[str]
    copies: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A policy whose trainer cannot be made again as it stands: its newest state is older than what had seen them."""

    policy: str
    state: int
    version: int


def sessions_of_user(connection: Connection, user: str, *, tenant: str | None, secret: str | None) -> list[str]:
    """Sessions in which a turn names the user, under the secret of now or recorded before there was one."""
    digests = {user_digest(user, tenant=tenant, secret=one) for one in (secret, None)}
    return list(connection.exec_driver_sql(_OF_USER, {"digests": sorted(digests)}).scalars())


def find(connection: Connection, session_id: str) -> Found:
    """Everything that is known of a session."""
    session = connection.exec_driver_sql(_SESSION, {"session": session_id}).one_or_none()
    places = [Place(**row) for row in connection.exec_driver_sql(_EVENTS, {"session": session_id}).mappings()]
    letters = letters_of(connection, session_id)
    return Found(
        session_id=session_id,
        known=session is not None or bool(letters),
        erased_at=None if session is None else session.erased_at,
        rows=contents_of(connection, session_id),
        places=places,
        datarefs=_datarefs(connection, session_id),
        copies={SIGNALS: signals_sent(connection, session_id), DEAD_LETTERS: len(letters)},
    )


def weights(connection: Connection, session_ids: Sequence[str]) -> tuple[list[SeenBy], list[InTraining]]:
    """The versions that had seen the sessions, and the micro-batches that are about to."""
    return seen_by(connection, session_ids), in_training(connection, session_ids)


def without_state(seen: Sequence[SeenBy], weights_dir: Path) -> list[Lost]:
    """Policies whose learner, were it started now, would have to train on erased samples again. Those whose weights are
    not on this machine are not looked at."""
    newest: dict[str, int] = {}
    for one in seen:
        if one.samples:
            newest[one.policy] = max(one.version, newest.get(one.policy, 0))
    lost = []
    for policy, version in newest.items():
        directory = policy_dir(weights_dir, policy)
        if not directory.is_dir():
            continue
        states = [int(path.stem[1:]) for path in (directory / "state").glob("v*.pt") if path.stem[1:].isdigit()]
        if max(states, default=0) < version:
            lost.append(Lost(policy=policy, state=max(states, default=0), version=version))
    return lost


def _datarefs(connection: Connection, session_id: str) -> list[str]:
    """Of its events, and of records that could not be read."""
    found = set(connection.exec_driver_sql(_DATAREFS, {"session": session_id}).scalars())
    ids = [letter.dead_letter_id for letter in letters_of(connection, session_id)]
    for headers in connection.exec_driver_sql(
        "SELECT headers FROM dead_letters WHERE dead_letter_id = ANY(%(ids)s)", {"ids": ids}
    ).scalars():
        found |= {base64.b64decode(data).decode("utf-8", "replace") for name, data in headers if name == "ce_dataref"}
    return sorted(found)
