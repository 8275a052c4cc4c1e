"""What the kept answers of model servers are, and what they saved, read from the tables.

Every vote and every teacher's score names the answer that it rests on. The first that used an answer paid for it, the
others were spared. An answer that nothing names was paid for all the same: its evaluation failed later, or its run was
deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection

_ENTRIES = """
SELECT a.purpose, a.model, count(*) AS entries, sum(pg_column_size(a.answer)) AS bytes,
       count(*) FILTER (WHERE v.answer_digest IS NULL AND t.answer_digest IS NULL) AS unused,
       min(a.created_at) AS oldest, max(a.created_at) AS newest,
       sum((a.answer -> 'usage' ->> 'prompt_tokens')::bigint) AS prompt_tokens,
       sum((a.answer -> 'usage' ->> 'completion_tokens')::bigint) AS completion_tokens
FROM model_answers a
LEFT JOIN (SELECT DISTINCT answer_digest FROM votes) v USING (answer_digest)
LEFT JOIN (SELECT DISTINCT answer_digest FROM teacher_scores) t USING (answer_digest)
GROUP BY a.purpose, a.model ORDER BY a.purpose, a.model
"""
_RUNS = """
WITH used AS (
    SELECT run, signal AS purpose, answer_digest, created_at, turn_id, vote FROM votes WHERE answer_digest IS NOT NULL
    UNION ALL
    SELECT run, 'teacher', answer_digest, created_at, turn_id, 0 FROM teacher_scores WHERE answer_digest IS NOT NULL
), told AS (
    SELECT run, purpose, answer_digest,
           row_number() OVER (PARTITION BY answer_digest ORDER BY created_at, run, turn_id, purpose, vote) = 1 AS paid
    FROM used
)
SELECT t.run, t.purpose, count(*) AS questions, count(*) FILTER (WHERE t.paid) AS paid,
       count(*) FILTER (WHERE NOT t.paid) AS spared,
       sum((a.answer -> 'usage' ->> 'prompt_tokens')::bigint) FILTER (WHERE NOT t.paid) AS prompt_tokens_spared,
       sum((a.answer -> 'usage' ->> 'completion_tokens')::bigint) FILTER (WHERE NOT t.paid) AS completion_tokens_spared
FROM told t LEFT JOIN model_answers a USING (answer_digest)
GROUP BY t.run, t.purpose ORDER BY t.run, t.purpose
"""


@dataclass(frozen=True, kw_only=True)
class Entries:
    """Kept answers of one model for one purpose. `bytes`: of the answers as they are stored, compressed. Tokens as the
    server counted them, of those answers where it did; None: of none."""

    purpose: str
    model: str
    entries: int
    bytes: int
    unused: int
    oldest: datetime
    newest: datetime
    prompt_tokens: int | None
    completion_tokens: int | None


@dataclass(frozen=True, kw_only=True)
class RunUse:
    """What one run asked for one purpose: `questions` = `paid` + `spared`."""

    run: str
    purpose: str
    questions: int
    paid: int
    spared: int
    prompt_tokens_spared: int | None
    completion_tokens_spared: int | None


@dataclass(frozen=True, kw_only=True)
class CacheStats:
    """`table_bytes`: on disk, with indexes. `asked_now`: questions that wait for a server at this moment."""

    entries: list[Entries]
    runs: list[RunUse]
    table_bytes: int
    asked_now: int


def cache_stats(connection: Connection) -> CacheStats:
    """Everything, of one moment if the transaction is repeatable."""
    entries = connection.exec_driver_sql(_ENTRIES).mappings()
    runs = connection.exec_driver_sql(_RUNS).mappings()
    one = connection.exec_driver_sql(
        "SELECT pg_total_relation_size('model_answers') AS bytes, "
        "(SELECT count(*) FROM open_questions WHERE lease_until > now()) AS now"
    ).one()
    return CacheStats(
        entries=[Entries(**_plain(row)) for row in entries],
        runs=[RunUse(**_plain(row)) for row in runs],
        table_bytes=one.bytes,
        asked_now=one.now,
    )


def _plain(row: Mapping[Any, Any]) -> dict[str, Any]:
    """A sum of bigint is numeric, which the driver reads as a Decimal."""
    return {name: int(value) if isinstance(value, Decimal) else value for name, value in row.items()}
