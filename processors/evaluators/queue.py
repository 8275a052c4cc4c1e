"""The work queue in `evaluations`: claims with a lease, so that work of a dead worker comes back by itself.

A claim is (worker, attempt). Whatever a worker does with an evaluation is conditional on still holding that very
claim; after its lease somebody else may hold it, and then nothing is written.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection

Signal = Literal["reward", "hint", "teacher"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One evaluation that `worker` holds; `attempt` counts how often it was claimed, from 1. `replayed`: its run is a
    replay, which takes recorded answers."""

    run: str
    turn_id: str
    signal: Signal
    worker: str
    attempt: int
    replayed: bool = False


CLAIM = """
WITH lapsed AS (
    SELECT run, turn_id, signal, priority, created_at AS due_at FROM evaluations
    WHERE signal = %(signal)s AND (%(runs)s::text[] IS NULL OR run = ANY(%(runs)s))
      AND state = 'claimed' AND lease_until < now()
    ORDER BY lease_until
    LIMIT %(n)s
    FOR UPDATE SKIP LOCKED
), due AS (
    SELECT run, turn_id, signal, priority, COALESCE(available_at, created_at) AS due_at FROM evaluations
    WHERE signal = %(signal)s AND (%(runs)s::text[] IS NULL OR run = ANY(%(runs)s))
      AND state = 'open' AND COALESCE(available_at, created_at) <= now()
    ORDER BY priority, COALESCE(available_at, created_at), turn_id
    LIMIT %(n)s
    FOR UPDATE SKIP LOCKED
), chosen AS (
    SELECT * FROM lapsed UNION ALL SELECT * FROM due
    ORDER BY priority, due_at, turn_id
    LIMIT %(n)s
)
UPDATE evaluations e
SET state = 'claimed', attempts = e.attempts + 1, worker = %(worker)s, available_at = NULL,
    lease_until = now() + make_interval(secs => %(lease_s)s)
FROM chosen WHERE (e.run, e.turn_id, e.signal) = (chosen.run, chosen.turn_id, chosen.signal)
RETURNING e.run, e.turn_id, e.attempts, e.priority
"""
"""Live before replayed, then what has been due for longest: nothing is overtaken for ever. Claimed by state and never
by position: a row that is committed late is found like any other. Each half reads its own index from the front, so a
claim costs the same however much is finished, held by others, or postponed."""

_HELD = """
FROM unnest(%(runs)s::text[], %(turns)s::text[], %(signals)s::text[], %(workers)s::text[], %(attempts)s::int[])
     AS mine(run, turn_id, signal, worker, attempt)
WHERE (e.run, e.turn_id, e.signal) = (mine.run, mine.turn_id, mine.signal)
  AND e.state = 'claimed' AND e.worker = mine.worker AND e.attempts = mine.attempt
RETURNING e.run, e.turn_id, e.signal, mine.worker, mine.attempt
"""


def claim(
    connection: Connection, *, signal: Signal, worker: str, n: int, lease_s: float, runs: Sequence[str] | None = None
) -> list[Claim]:
    """Claim up to `n` evaluations of `signal` that are open and due, or whose lease has ended; of these `runs` only."""
    found = connection.exec_driver_sql(
        CLAIM,
        {"signal": signal, "worker": worker, "n": n, "lease_s": lease_s, "runs": None if runs is None else list(runs)},
    )
    return [
        Claim(
            run=row.run,
            turn_id=row.turn_id,
            signal=signal,
            worker=worker,
            attempt=row.attempts,
            replayed=row.priority > 0,
        )
        for row in found
    ]


def extend(connection: Connection, claims: Iterable[Claim], lease_s: float) -> set[Claim]:
    """Heartbeat: prolong the leases. Returns those that are still held; the others are lost."""
    return _update_held(
        connection, list(claims), "lease_until = now() + make_interval(secs => %(lease_s)s)", lease_s=lease_s
    )


def release(connection: Connection, claims: Iterable[Claim]) -> set[Claim]:
    """Give work back untried, as a worker that stops does: the attempt does not count."""
    return _update_held(
        connection,
        list(claims),
        "state = 'open', attempts = e.attempts - 1, worker = NULL, lease_until = NULL, available_at = NULL",
    )


def postpone(connection: Connection, claims: Iterable[Claim], *, delay_s: float, reason: str) -> set[Claim]:
    """Give work back untried, not to be claimed before `delay_s` from now, since its server has no room for it: the
    attempt does not count. Each waits up to a tenth longer, so that they do not come back in one moment."""
    return _update_held(
        connection,
        list(claims),
        "state = 'open', attempts = e.attempts - 1, worker = NULL, lease_until = NULL, reason = %(reason)s, "
        "available_at = now() + make_interval(secs => %(delay_s)s * (1 + random() / 10))",
        delay_s=delay_s,
        reason=reason,
    )


def retry(connection: Connection, claim: Claim, *, delay_s: float, reason: str) -> bool:
    """Open it again, not before `delay_s` from now. False where the claim was lost."""
    held = _update_held(
        connection,
        [claim],
        "state = 'open', worker = NULL, lease_until = NULL, reason = %(reason)s, "
        "available_at = now() + make_interval(secs => %(delay_s)s)",
        delay_s=delay_s,
        reason=reason,
    )
    return bool(held)


def finish(
    connection: Connection, claims: Sequence[Claim], states: Sequence[str], reasons: Sequence[str | None]
) -> set[Claim]:
    """Make each claim's evaluation `done` or `failed`. Returns those that were still held, now locked until the
    transaction ends; for the others nothing was changed and the caller must write nothing."""
    return _update_held(
        connection,
        claims,
        "state = ended.state, reason = ended.reason, worker = NULL, lease_until = NULL, finished_at = now()",
        ended=(
            "JOIN unnest(%(runs)s::text[], %(turns)s::text[], %(signals)s::text[], %(states)s::text[], "
            "%(reasons)s::text[]) AS ended(run, turn_id, signal, state, reason) USING (run, turn_id, signal)"
        ),
        states=list(states),
        reasons=list(reasons),
    )


def backoff_s(attempt: int, *, base_s: float, max_s: float, chance: random.Random) -> float:
    """Wait after the `attempt`-th try failed: doubled each time, then 50 to 100 % of that, so that workers which
    failed together do not come back together."""
    return float(min(max_s, base_s * 2.0 ** (attempt - 1)) * chance.uniform(0.5, 1.0))


def _update_held(
    connection: Connection, claims: Sequence[Claim], assignments: str, *, ended: str = "", **parameters: object
) -> set[Claim]:
    if not claims:
        return set()
    held = _HELD.replace("\nWHERE", f"\n{ended}\nWHERE") if ended else _HELD
    found = connection.exec_driver_sql(
        f"UPDATE evaluations e SET {assignments} {held}",
        {
            "runs": [claim.run for claim in claims],
            "turns": [claim.turn_id for claim in claims],
            "signals": [claim.signal for claim in claims],
            "workers": [claim.worker for claim in claims],
            "attempts": [claim.attempt for claim in claims],
            **parameters,
        },
    )
    kept = {(row.run, row.turn_id, row.signal, row.worker, row.attempt) for row in found}
    return {claim for claim in claims if (claim.run, claim.turn_id, claim.signal, claim.worker, claim.attempt) in kept}
