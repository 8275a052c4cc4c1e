"""Which weight versions had learned from a session: those of micro-batches with its samples, and all after them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

_SEEN = """
WITH RECURSIVE trained AS (
    SELECT v.policy, v.version, v.run, count(*) AS samples, array_agg(DISTINCT s.session_id) AS sessions
    FROM samples s JOIN weight_versions v ON v.micro_batch_id = s.micro_batch_id
    WHERE s.turn_id IN (SELECT turn_id FROM turns WHERE session_id = ANY(%(sessions)s)) AND s.state = 'trained'
    GROUP BY v.policy, v.version, v.run
), seen AS (
    SELECT policy, version FROM trained
    UNION
    SELECT v.policy, v.version FROM weight_versions v
    JOIN seen ON v.policy = seen.policy AND v.parent_version = seen.version
)
SELECT v.policy, v.version, v.run, coalesce(t.samples, 0) AS samples, coalesce(t.sessions, '{}') AS sessions
FROM seen JOIN weight_versions v USING (policy, version) LEFT JOIN trained t USING (policy, version)
ORDER BY v.policy, v.version
"""

_IN_TRAINING = """
SELECT b.run, b.seq, b.policy, count(*) AS samples
FROM samples s JOIN micro_batches b USING (micro_batch_id)
WHERE s.turn_id IN (SELECT turn_id FROM turns WHERE session_id = ANY(%(sessions)s)) AND s.state = 'batched'
GROUP BY b.run, b.seq, b.policy ORDER BY b.run, b.seq
"""


@dataclass(frozen=True, kw_only=True)
class SeenBy:
    """A weight version; `samples` of the sessions in its own micro-batch, 0 where it only descends from such."""

    policy: str
    version: int
    run: str | None
    samples: int
    sessions: list[str]


@dataclass(frozen=True, kw_only=True)
class InTraining:
    """A published micro-batch with samples of the sessions that the learner has not committed."""

    policy: str
    run: str
    seq: int
    samples: int


def seen_by(connection: Connection, session_ids: Sequence[str]) -> list[SeenBy]:
    """Every version that had seen one of the sessions."""
    rows = connection.exec_driver_sql(_SEEN, {"sessions": list(session_ids)}).mappings()
    return [SeenBy(**{**row, "sessions": sorted(row["sessions"])}) for row in rows]


def in_training(connection: Connection, session_ids: Sequence[str]) -> list[InTraining]:
    """Micro-batches on their way to the learner. Samples that it has not loaded are dropped; those that it trains at
    this moment make a version that has seen them."""
    rows = connection.exec_driver_sql(_IN_TRAINING, {"sessions": list(session_ids)}).mappings()
    return [InTraining(**row) for row in rows]
