"""Everything that a comparison of two runs says, read from the database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from hindstream.compare.agreement import Agreement, agreement
from schemas.recipes import recipe_from_dict
from schemas.recipes.changes import Difference, differences


class UnknownRun(LookupError):
    """There is no run of this name."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A metric of a run by step; a step without it is left out."""

    name: str
    unit: str
    steps: list[int]
    values: list[float]


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """One of the two runs. `metrics`: by name the mean over its steps; `curves` by metric."""

    run: str
    kind: str
    policy: str
    recipe: str
    recipe_digest: str
    ledger: dict[str, int]
    drops: dict[str, int]
    rewards: dict[str, int]
    versions: int
    metrics: dict[str, float]
    curves: dict[str, Curve]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs. `turns`: turns in both; `confusion`: (reward of a, reward of b, turns); `trained_apart`: turns that one
    trained and the other not, with what the other did instead."""

    a: RunFigures
    b: RunFigures
    recipe: list[Difference]
    turns: int
    only_a: int
    only_b: int
    rewards: Agreement
    confusion: list[tuple[float | None, float | None, int]]
    hints: dict[str, int]
    trained_both: int
    trained_apart: list[dict[str, Any]]


SHOWN = (
    "reward_mean",
    "loss",
    "kl_k3",
    "entropy",
    "gradient_norm",
    "ratio_p01",
    "ratio_p99",
    "logprob_gap_mean",
    "rl_advantage_p05",
    "rl_advantage_p95",
    "opd_advantage_p05",
    "opd_advantage_p95",
    "staleness_mean",
)
"""Metrics that are drawn as curves, where both runs or one of them have them."""


def compare_runs(connection: Connection, a: str, b: str) -> Comparison:
    """The comparison of runs `a` and `b`.

    Raises:
        UnknownRun: there is no such run.
        InvalidRecipe: a run's recipe is none that this version knows.
    """
    named = {"a": a, "b": b}
    figures = {run: _run(connection, run) for run in (a, b)}
    recipes = [recipe_from_dict(connection.exec_driver_sql(_RECIPE, {"run": run}).scalar_one()) for run in (a, b)]
    cells = [(row.reward_a, row.reward_b, row.turns) for row in connection.exec_driver_sql(_CONFUSION, named)]
    overlap = connection.exec_driver_sql(_OVERLAP, named).one()
    hints = connection.exec_driver_sql(_HINTS, named).mappings().one_or_none()
    return Comparison(
        a=figures[a],
        b=figures[b],
        recipe=differences(*recipes),
        turns=overlap.both,
        only_a=overlap.only_a,
        only_b=overlap.only_b,
        rewards=agreement({(x, y): turns for x, y, turns in cells}),
        confusion=cells,
        hints=dict(hints) if hints else {"same": 0, "other_words": 0, "only_a": 0, "only_b": 0},
        trained_both=overlap.trained_both,
        trained_apart=[dict(row) for row in connection.exec_driver_sql(_APART, named).mappings()],
    )


_RECIPE = "SELECT recipe FROM runs WHERE run = %(run)s"
_RUN = "SELECT kind, policy, recipe_name, recipe_digest FROM runs WHERE run = %(run)s AND deleted_at IS NULL"
_LEDGER = "SELECT turns_seen, trained, ready, batched, pending, dropped, balance FROM ledger WHERE run = %(run)s"
_DROPS = "SELECT drop_reason, turns FROM drops WHERE run = %(run)s ORDER BY turns DESC, drop_reason"
_REWARDS = """
SELECT CASE WHEN status IN ('scored', 'tie') THEN to_char(value, 'SGFM0') ELSE status END AS reward, count(*) AS turns
FROM rewards WHERE run = %(run)s GROUP BY 1 ORDER BY 1
"""
_METRICS = (
    "SELECT name, coalesce(unit, '') AS unit, step, value FROM step_metrics WHERE run = %(run)s ORDER BY name, step"
)
_VERSIONS = "SELECT count(*) FROM weight_versions WHERE run = %(run)s"
_CONFUSION = """
SELECT reward_a, reward_b, turns FROM reward_confusion WHERE run_a = %(a)s AND run_b = %(b)s
ORDER BY reward_a NULLS LAST, reward_b NULLS LAST
"""
_OVERLAP = """
SELECT count(*) FILTER (WHERE a.turn_id IS NOT NULL AND b.turn_id IS NOT NULL) AS both,
       count(*) FILTER (WHERE b.turn_id IS NULL) AS only_a, count(*) FILTER (WHERE a.turn_id IS NULL) AS only_b,
       count(*) FILTER (WHERE a.state = 'trained' AND b.state = 'trained') AS trained_both
FROM (SELECT turn_id, state FROM samples WHERE run = %(a)s) a
FULL JOIN (SELECT turn_id, state FROM samples WHERE run = %(b)s) b ON b.turn_id = a.turn_id
"""
_HINTS = "SELECT same, other_words, only_a, only_b FROM hint_agreement WHERE run_a = %(a)s AND run_b = %(b)s"
_APART = """
SELECT state_a, drop_reason_a, state_b, drop_reason_b, turns FROM trained_apart
WHERE run_a = %(a)s AND run_b = %(b)s ORDER BY turns DESC, state_a, state_b, drop_reason_a, drop_reason_b
"""


def _run(connection: Connection, run: str) -> RunFigures:
    named = {"run": run}
    row = connection.exec_driver_sql(_RUN, named).one_or_none()
    if row is None:
        raise UnknownRun(run)
    curves: dict[str, Curve] = {}
    for metric in connection.exec_driver_sql(_METRICS, named):
        curve = curves.setdefault(metric.name, Curve(name=metric.name, unit=metric.unit, steps=[], values=[]))
        curve.steps.append(metric.step)
        curve.values.append(metric.value)
    return RunFigures(
        run=run,
        kind=row.kind,
        policy=row.policy,
        recipe=row.recipe_name,
        recipe_digest=row.recipe_digest,
        ledger=dict(connection.exec_driver_sql(_LEDGER, named).mappings().one()),
        drops={row.drop_reason: row.turns for row in connection.exec_driver_sql(_DROPS, named)},
        rewards={row.reward: row.turns for row in connection.exec_driver_sql(_REWARDS, named)},
        versions=connection.exec_driver_sql(_VERSIONS, named).scalar_one(),
        metrics={name: sum(curve.values) / len(curve.values) for name, curve in curves.items()},
        curves=curves,
    )
