"""Linking: which turns are complete, and what each run then still has to ask about them.

Everything here is recomputed from the facts of the given sessions, never from what was delivered last, so any order
of delivery ends in the same rows (`created_at` and the like aside).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from processors.inserting import insert_new
from processors.trainable import NEVER_JUDGED
from schemas import tables
from schemas.recipes import Recipe, needs_of, recipe_from_dict
from schemas.states import DROP_REASONS, EVALUATION_TRANSITIONS, SAMPLE_TRANSITIONS, must_follow

COMPLETE = """
WITH closed AS (
    SELECT s.session_id FROM sessions s
    WHERE s.session_id = ANY(%(sessions)s) AND s.close_reason IS NOT NULL
      AND (s.expected_turns IS NULL OR s.expected_turns <=
           (SELECT count(*) FROM turns t WHERE t.session_id = s.session_id))
      AND (s.expected_next_states IS NULL OR s.expected_next_states <=
           (SELECT count(*) FROM next_states n WHERE n.session_id = s.session_id))
), followed AS (
    SELECT DISTINCT ON (child.parent_turn_id) child.parent_turn_id AS turn_id, child.turn_id AS cause_id
    FROM turns child
    WHERE child.session_id = ANY(%(sessions)s) AND child.parent_turn_id IS NOT NULL AND child.kind = 'main'
      AND NOT EXISTS (
          SELECT 1 FROM jsonb_array_elements_text(child.next_state_ids) AS carried(id)
          WHERE NOT EXISTS (SELECT 1 FROM next_states n WHERE n.next_state_id = carried.id))
    ORDER BY child.parent_turn_id, child.ordinal, child.turn_id
)
INSERT INTO turn_completions (turn_id, completed_by, cause_id)
SELECT t.turn_id,
       CASE WHEN f.turn_id IS NULL THEN 'session_closed' ELSE 'next_turn' END,
       coalesce(f.cause_id, t.session_id)
FROM turns t
LEFT JOIN followed f ON f.turn_id = t.turn_id
LEFT JOIN closed c ON c.session_id = t.session_id
WHERE t.session_id = ANY(%(sessions)s) AND (f.turn_id IS NOT NULL OR c.session_id IS NOT NULL)
ON CONFLICT (turn_id) DO UPDATE SET completed_by = excluded.completed_by, cause_id = excluded.cause_id
WHERE (turn_completions.completed_by, turn_completions.cause_id) <> (excluded.completed_by, excluded.cause_id)
"""
"""A turn is complete when the next main turn of its branch and all the next states that it carried are recorded, or
when its session is closed and as much is recorded as the closing event promised.

Where several causes hold, the same one is named in every order of delivery: a next turn before the session's end, the
first by (ordinal, id) among several. A side turn completes nothing: it is no answer of the branch.
"""

UNLINKED = """
SELECT s.sample_id, s.run, s.turn_id, s.state, s.drop_reason, s.replay_order,
       EXISTS (SELECT 1 FROM next_states n WHERE n.turn_id = s.turn_id) AS answered
FROM turns t
JOIN turn_completions c ON c.turn_id = t.turn_id
JOIN samples s ON s.turn_id = t.turn_id
WHERE t.session_id = ANY(%(sessions)s) AND NOT s.linked
ORDER BY s.sample_id
FOR UPDATE OF s
"""

UNFINISHED = """
SELECT s.sample_id, s.run, s.turn_id, s.state, s.drop_reason, s.replay_order,
       EXISTS (SELECT 1 FROM next_states n WHERE n.turn_id = s.turn_id) AS answered
FROM samples s
WHERE s.run = %(run)s AND NOT s.linked
ORDER BY s.sample_id
FOR UPDATE
"""

NOT_SCORED = "the turn is not trained, so no teacher scores it"

_LIVE, _REPLAYED = 0, 1
"""Priority of evaluations: somebody waits for what a live run learns."""


@dataclass(frozen=True)
class Linked:
    """What one call of `link` changed."""

    opened: int
    """Evaluations that were opened."""
    unanswered: int
    """Samples that became dropped(no_next_state)."""
    reopened: int
    """Samples that were dropped(no_next_state) until a next state came after all."""


def link(connection: Connection, session_ids: Iterable[str]) -> Linked:
    """Complete the turns of the sessions that can be, open evaluations for what was answered, drop what was not.

    Runs in the caller's transaction, which holds the sessions' locks (`processors.sessions.lock_sessions`). Calling
    it again changes nothing. A turn that cannot be trained is judged all the same, unless it is a side turn, was
    aborted or failed; only the teacher is left out.
    """
    sessions = sorted(set(session_ids))
    connection.exec_driver_sql(COMPLETE, {"sessions": sessions})
    found = connection.exec_driver_sql(UNLINKED, {"sessions": sessions}).all()
    if not found:
        return Linked(0, 0, 0)
    return _link(connection, found)


def link_unfinished(connection: Connection, run: str) -> Linked:
    """What `link` does for complete turns, for every turn of a replay that is not complete although its log was read to
    the end: its range ends there, as a session would. Nothing reopens them later."""
    found = connection.exec_driver_sql(UNFINISHED, {"run": run}).all()
    linked = _link(connection, found)
    connection.exec_driver_sql(
        "UPDATE samples SET linked = true, updated_at = now() WHERE run = %(run)s AND NOT linked", {"run": run}
    )
    return linked


def _link(connection: Connection, found: Sequence[Any]) -> Linked:
    """Link samples of complete turns. A recipe to which an answer says something by itself needs none to it."""
    recipes = recipes_of(connection, {row.run for row in found if not row.answered})
    alone = {run for run, recipe in recipes.items() if needs_of(recipe).unanswered}
    answered = [row for row in found if row.answered or row.run in alone]
    unanswered = [row.sample_id for row in found if not (row.answered or row.run in alone) and row.state == "pending"]
    late = [row.sample_id for row in answered if row.drop_reason == "no_next_state"]
    _drop_unanswered(connection, unanswered)
    _reopen(connection, late)
    opened = _open_evaluations(connection, answered)
    return Linked(opened, len(unanswered), len(late))


def recipes_of(connection: Connection, runs: Iterable[str]) -> dict[str, Recipe]:
    """The recipes of `runs`.

    Raises:
        InvalidRecipe: a run's recipe is none that this version knows.
    """
    found = connection.exec_driver_sql(
        "SELECT run, recipe FROM runs WHERE run = ANY(%(runs)s)", {"runs": sorted(set(runs))}
    )
    return {run: recipe_from_dict(plain) for run, plain in found}


def _drop_unanswered(connection: Connection, sample_ids: Sequence[str]) -> None:
    if not sample_ids:
        return
    must_follow(SAMPLE_TRANSITIONS, "pending", "dropped")
    connection.exec_driver_sql(
        "UPDATE samples SET state = 'dropped', drop_reason = 'no_next_state', drop_detail = %(detail)s, "
        "updated_at = now() WHERE sample_id = ANY(%(ids)s) AND state = 'pending'",
        {"ids": list(sample_ids), "detail": DROP_REASONS["no_next_state"]},
    )


def _reopen(connection: Connection, sample_ids: Sequence[str]) -> None:
    if not sample_ids:
        return
    must_follow(SAMPLE_TRANSITIONS, "dropped", "pending")
    connection.exec_driver_sql(
        "UPDATE samples SET state = 'pending', drop_reason = NULL, drop_detail = NULL, updated_at = now() "
        "WHERE sample_id = ANY(%(ids)s) AND state = 'dropped' AND drop_reason = 'no_next_state'",
        {"ids": list(sample_ids)},
    )


def _open_evaluations(connection: Connection, answered: Sequence[Any]) -> int:
    """The evaluations of samples whose turn is complete and answered; their samples become linked."""
    if not answered:
        return 0
    recipes = recipes_of(connection, {row.run for row in answered})
    rows: list[dict[str, Any]] = []
    for sample in answered:
        rows += evaluations_of(sample, recipes[sample.run])
    insert_new(connection, tables.evaluations, rows)
    connection.exec_driver_sql(
        "UPDATE samples SET linked = true, updated_at = now() WHERE sample_id = ANY(%(ids)s)",
        {"ids": [row.sample_id for row in answered]},
    )
    skipped = [row["turn_id"] for row in rows if row["state"] == "done"]
    if skipped:  # no column of its own in the insert: now() is the database's
        connection.exec_driver_sql(
            "UPDATE evaluations SET finished_at = now() WHERE turn_id = ANY(%(turns)s) AND signal = 'teacher' "
            "AND state = 'done' AND finished_at IS NULL",
            {"turns": skipped},
        )
    return len(rows)


def evaluations_of(sample: Any, recipe: Recipe) -> list[dict[str, Any]]:
    """The rows of `evaluations` that a sample of a complete and answered turn begins with; `sample` has `run`,
    `turn_id`, `drop_reason` and `replay_order`."""
    if sample.drop_reason in NEVER_JUDGED:
        return []
    trained = sample.drop_reason in (None, "no_next_state")
    rows = []
    for signal in recipe.signals():
        state = "open"
        if signal == "teacher":
            state = ("open" if recipe.hint is None else "waiting") if trained else "done"
        rows.append(_evaluation(sample, signal, state))
    return rows


def _evaluation(sample: Any, signal: str, state: str) -> dict[str, Any]:
    if state == "done":
        must_follow(EVALUATION_TRANSITIONS, "waiting", "done")
    return {
        "run": sample.run,
        "turn_id": sample.turn_id,
        "signal": signal,
        "state": state,
        "priority": _LIVE if sample.replay_order is None else _REPLAYED,
        "reason": NOT_SCORED if state == "done" else None,
    }
