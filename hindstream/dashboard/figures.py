"""The figures of a run, each one SQL query away: nothing here is counted twice or kept in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import Connection, text

_TOTALS = text(
    """
    SELECT l.turns_seen, l.trained, l.ready, l.batched, l.pending, l.dropped, l.balance,
           (SELECT count(*) FROM rewards w WHERE w.run = l.run AND w.value IS NOT NULL) AS rewards,
           (SELECT count(*) FROM rewards w WHERE w.run = l.run AND w.value > 0) AS rewards_positive,
           (SELECT count(*) FROM hints h WHERE h.run = l.run AND h.status = 'accepted') AS hints,
           (SELECT count(*) FROM teacher_scores c WHERE c.run = l.run) AS teacher_scores,
           (SELECT count(*) FROM micro_batches b WHERE b.run = l.run) AS micro_batches,
           (SELECT count(*) FROM weight_versions v WHERE v.run = l.run) AS weight_versions,
           (SELECT max(version) FROM weight_versions v WHERE v.policy = r.policy) AS newest_version,
           (SELECT version FROM weight_loads w WHERE w.policy = r.policy AND w.status = 'serving'
            ORDER BY created_at DESC LIMIT 1) AS served_version,
           (SELECT avg(staleness) FROM samples s WHERE s.run = l.run AND s.state = 'trained') AS mean_staleness,
           (SELECT max(staleness) FROM samples s WHERE s.run = l.run AND s.state = 'trained') AS max_staleness,
           (SELECT count(*) FROM dead_letters) AS dead_letters
    FROM ledger l JOIN runs r USING (run) WHERE l.run = :run
    """
)
_DROPS = text("SELECT drop_reason, turns FROM drops WHERE run = :run ORDER BY turns DESC, drop_reason")
_STEPS = text(
    """
    SELECT version, skipped_reason, metrics, samples_trained, tokens, seconds
    FROM training_steps WHERE run = :run ORDER BY step
    """
)
_REWARD_BY_VERSION = text(
    """
    SELECT t.oldest_version AS version, count(*) AS turns, avg((w.value > 0)::int) AS liked,
           avg(t.response_tokens) AS tokens
    FROM rewards w JOIN turns t USING (turn_id)
    WHERE w.run = :run AND w.value IS NOT NULL AND t.oldest_version IS NOT NULL
    GROUP BY 1 ORDER BY 1
    """
)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A run at one moment. `balance` is the ledger's: anything but 0 is a lost or doubled turn."""

    turns_seen: int = 0
    trained: int = 0
    ready: int = 0
    batched: int = 0
    pending: int = 0
    dropped: int = 0
    balance: int = 0
    rewards: int = 0
    rewards_positive: int = 0
    hints: int = 0
    teacher_scores: int = 0
    micro_batches: int = 0
    weight_versions: int = 0
    newest_version: int | None = None
    served_version: int | None = None
    mean_staleness: float | None = None
    max_staleness: int | None = None
    dead_letters: int = 0
    drops: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class VersionReward:
    """How the turns that began under one weight version were received. `tokens` is their mean length."""

    version: int
    turns: int
    liked: float
    tokens: float


@dataclass(frozen=True, kw_only=True)
class Step:
    """One training step as it was logged."""

    version: int | None
    skipped_reason: str | None
    metrics: dict[str, float | None]
    samples_trained: int
    tokens: int
    seconds: float


def read_figures(connection: Connection, run: str) -> Figures:
    """The figures of `run` now; all zero where there is no such run."""
    row = connection.execute(_TOTALS, {"run": run}).mappings().one_or_none()
    if row is None:
        return Figures()
    plain = dict(row)
    mean = plain.pop("mean_staleness")
    drops = {row.drop_reason: row.turns for row in connection.execute(_DROPS, {"run": run})}
    return Figures(**plain, mean_staleness=None if mean is None else float(mean), drops=drops)


def read_rewards_by_version(connection: Connection, run: str) -> list[VersionReward]:
    """The share of liked answers by the weight version that began them, oldest first."""
    rows = connection.execute(_REWARD_BY_VERSION, {"run": run})
    return [
        VersionReward(version=version, turns=turns, liked=float(liked), tokens=float(tokens))
        for version, turns, liked, tokens in rows
    ]


def read_steps(connection: Connection, run: str) -> list[Step]:
    """Every training step of `run`, in order."""
    return [Step(**dict(row)) for row in connection.execute(_STEPS, {"run": run}).mappings()]
