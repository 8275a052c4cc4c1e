"""Opening samples: what the records can tell about a turn is decided in the transaction that takes it.

Most turns of a replay are complete, and most of their questions were answered before. Their rows are written once, in
the state that they end in; claims, leases and retries are for what must be asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from processors.evaluators.completion import Outcome, write_results
from processors.evaluators.queue import Claim
from processors.evaluators.recorded import Models, from_records
from processors.inserting import insert_new
from processors.linking import evaluations_of
from schemas import tables
from schemas.database import is_refused
from schemas.recipes import Recipe, needs_of
from schemas.states import DROP_REASONS

_FACTS = """
SELECT t.turn_id, c.turn_id IS NOT NULL AS complete,
       EXISTS (SELECT 1 FROM next_states n WHERE n.turn_id = t.turn_id) AS answered
FROM turns t LEFT JOIN turn_completions c ON c.turn_id = t.turn_id
WHERE t.turn_id = ANY(%(turns)s)
"""

_EVALUATIONS = """
INSERT INTO evaluations (run, turn_id, signal, state, priority, reason, finished_at)
SELECT %(run)s, new.turn_id, new.signal, new.state, new.priority, new.reason,
       CASE WHEN new.state IN ('done', 'failed') THEN now() END
FROM unnest(%(turns)s::text[], %(signals)s::text[], %(states)s::text[], %(priorities)s::int[], %(reasons)s::text[])
     AS new(turn_id, signal, state, priority, reason)
ON CONFLICT DO NOTHING
RETURNING turn_id, signal
"""


@dataclass(frozen=True)
class _Sample:
    run: str
    turn_id: str
    drop_reason: str | None
    replay_order: int | None


def open_samples(
    connection: Connection, run: str, recipe: Recipe, rows: Sequence[dict[str, Any]], models: Models | None
) -> int:
    """Insert the samples `rows` of a replay, those of them whose turn is recorded and has none in the run yet, in the
    caller's transaction, which holds their sessions' locks. Returns how many were new.

    A turn that is complete is linked as `processors.linking.link` does it; with `models`, what rules and recorded
    answers tell is final at once, and the sample with it where nothing else is asked.
    """
    wanted = {"turns": [row["turn_id"] for row in rows]}
    facts = {fact.turn_id: fact for fact in connection.exec_driver_sql(_FACTS, wanted)}
    alone = needs_of(recipe).unanswered
    opened: list[dict[str, Any]] = []
    linked: dict[str, _Sample] = {}
    for row in rows:
        fact = facts.get(row["turn_id"])
        if fact is None:  # the event was refused: there is no such turn
            continue
        if fact.complete and not row["linked"]:
            if fact.answered or alone:
                row = {**row, "linked": True}
                sample = _Sample(run, row["turn_id"], row["drop_reason"], row["replay_order"])
                linked.setdefault(sample.turn_id, sample)
            elif row["state"] == "pending":
                detail = DROP_REASONS["no_next_state"]
                row = {**row, "state": "dropped", "drop_reason": "no_next_state", "drop_detail": detail}
        opened.append(row)
    new = set(insert_new(connection, tables.samples, opened, returning=("turn_id",)))
    turns = {turn_id for (turn_id,) in new}
    _evaluate(connection, run, recipe, [sample for turn_id, sample in linked.items() if turn_id in turns], models)
    return len(turns)


def _evaluate(
    connection: Connection, run: str, recipe: Recipe, samples: Sequence[_Sample], models: Models | None
) -> None:
    evaluations = [row for sample in samples for row in evaluations_of(sample, recipe)]
    if not evaluations:
        return
    outcomes: list[Outcome] = []
    if models is not None:
        claims = [
            Claim(run=run, turn_id=row["turn_id"], signal=row["signal"], worker="", attempt=0, replayed=True)
            for row in evaluations
            if row["state"] != "done"
        ]
        outcomes = from_records(connection, claims, recipe, models)
    try:
        with connection.begin_nested():
            _write(connection, run, evaluations, outcomes)
    except DBAPIError as err:
        if not outcomes or not is_refused(err):
            raise
        _write(connection, run, evaluations, [])  # the evaluator service tells which one it is


def _write(
    connection: Connection, run: str, evaluations: Sequence[dict[str, Any]], outcomes: Sequence[Outcome]
) -> None:
    final = {(outcome.claim.turn_id, outcome.claim.signal): outcome for outcome in outcomes}
    ended = [final.get((row["turn_id"], row["signal"])) for row in evaluations]
    inserted = connection.exec_driver_sql(
        _EVALUATIONS,
        {
            "run": run,
            "turns": [row["turn_id"] for row in evaluations],
            "signals": [row["signal"] for row in evaluations],
            "states": [row["state"] if end is None else end.state for row, end in zip(evaluations, ended, strict=True)],
            "priorities": [row["priority"] for row in evaluations],
            "reasons": [
                row["reason"] if end is None else end.reason for row, end in zip(evaluations, ended, strict=True)
            ],
        },
    )
    mine = {(turn_id, signal) for turn_id, signal in inserted}
    write_results(connection, [outcome for key, outcome in final.items() if key in mine])
