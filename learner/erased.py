"""Samples that were erased: never trained again, and versions that had seen them are not made again from the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, text

from learner.errors import LearnerStopped

_TRAINED = text(
    """
    SELECT s.sample_id, s.session_id, v.version
    FROM weight_versions v
    JOIN samples s ON s.micro_batch_id = v.micro_batch_id AND s.state = 'trained'
    JOIN turns t ON t.turn_id = s.turn_id
    WHERE v.policy = :policy AND v.version > :begin AND v.version <= :end AND t.erased_at IS NOT NULL
    ORDER BY v.version, s.position
    LIMIT :most
    """
)
_NAMED = 10
"""Samples that a message names: their sessions say the rest."""


def erased_since(connection: Connection, policy: str, begin: int, end: int) -> Sequence[Any]:
    """Erased samples that made versions after `begin` up to `end`, with their sessions; the first few."""
    return connection.execute(_TRAINED, {"policy": policy, "begin": begin, "end": end, "most": _NAMED}).all()


def refuse_erased(connection: Connection, policy: str, begin: int, end: int) -> None:
    """Refuse to make the versions after `begin` up to `end` again where a sample of theirs was erased.

    Raises:
        LearnerStopped: one was; the message names samples, sessions and versions.
    """
    found = erased_since(connection, policy, begin, end)
    if not found:
        return
    named = ", ".join(f"{row.sample_id} (session {row.session_id}, version {row.version})" for row in found)
    more = ", and perhaps more" if len(found) == _NAMED else ""
    raise LearnerStopped(
        f"policy {policy!r}: version {found[0].version} and what follows cannot be made again from the log: samples "
        f"that it was trained on were erased on request: {named}{more}. Its weights are whole and can be served. A "
        f"learner needs a saved state of version {found[-1].version} or later; without one, start a policy of another "
        "name from its weights (HINDSTREAM_MODEL, HINDSTREAM_RUN__POLICY)"
    )
