"""Opening samples: what the records can tell about a turn is decided in the transaction that takes it.

Most turns of a replay are complete, and most of their questions were answered before. Their rows are written once, in
the state that they end in; claims, leases and retries are for what must be asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from processors.erasing.session import erased_sessions
from processors.evaluators.completion import Outcome, write_results
from processors.evaluators.hint import HintResult
from processors.evaluators.judge import RewardResult
from processors.evaluators.queue import Claim
from processors.evaluators.recorded import Models, from_records
from processors.evaluators.teacher import TeacherScores
from processors.linking import evaluations_of, link
from processors.settling import Signals, settle, why_not_trained
from schemas.database import is_refused
from schemas.digests import sample_digest_of, sample_id
from schemas.recipes import Needs, Recipe, needs_of
from schemas.states import DROP_REASONS
from schemas.text import sanitise_text

_FACTS = """
SELECT t.turn_id, t.session_id, t.ordinal, t.group_id, t.prompt_ids, t.response_ids, t.response_logprobs,
       c.turn_id IS NOT NULL AS complete,
       EXISTS (SELECT 1 FROM next_states n WHERE n.turn_id = t.turn_id) AS answered
FROM turns t LEFT JOIN turn_completions c ON c.turn_id = t.turn_id
WHERE t.turn_id = ANY(%(turns)s)
  AND NOT EXISTS (SELECT 1 FROM samples s WHERE s.run = %(run)s AND s.turn_id = t.turn_id)
"""

_SAMPLES = """
INSERT INTO samples (run, sample_id, turn_id, session_id, state, drop_reason, drop_detail, linked, replay_order,
                     content_digest, ready_at, updated_at)
SELECT %(run)s, new.*, CASE WHEN new.state = 'ready' THEN now() END, now()
FROM unnest(%(samples)s::text[], %(turns)s::text[], %(sessions)s::text[], %(states)s::text[], %(reasons)s::text[],
            %(details)s::text[], %(linked)s::boolean[], %(orders)s::bigint[], %(digests)s::text[])
     AS new(sample_id, turn_id, session_id, state, drop_reason, drop_detail, linked, replay_order, content_digest)
ON CONFLICT DO NOTHING
RETURNING turn_id
"""

_EVALUATIONS = """
INSERT INTO evaluations (run, turn_id, signal, state, priority, reason, finished_at)
SELECT %(run)s, new.*, CASE WHEN new.state IN ('done', 'failed') THEN now() END
FROM unnest(%(turns)s::text[], %(signals)s::text[], %(states)s::text[], %(priorities)s::int[], %(reasons)s::text[])
     AS new(turn_id, signal, state, priority, reason)
ON CONFLICT DO NOTHING
RETURNING turn_id, signal
"""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A turn that a replay takes, as the row that its sample begins with. `linked`: its evaluations are opened, or it
    has none."""

    run: str
    turn_id: str
    session_id: str
    replay_order: int
    state: str = "pending"
    drop_reason: str | None = None
    drop_detail: str | None = None
    linked: bool = False
    content_digest: str | None = None


@dataclass
class _Batch:
    """Samples by turn, the evaluations that they begin with, and the outcomes that are known."""

    taken: dict[str, Taken]
    evaluations: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    outcomes: dict[tuple[str, str], Outcome] = field(default_factory=dict)

    def without(self, sessions: set[str]) -> _Batch:
        taken = {turn_id: one for turn_id, one in self.taken.items() if one.session_id not in sessions}
        return _Batch(
            taken,
            {turn_id: rows for turn_id, rows in self.evaluations.items() if turn_id in taken},
            {key: outcome for key, outcome in self.outcomes.items() if key[0] in taken},
        )


@dataclass(frozen=True)
class Opened:
    """Samples that are decided as far as rules and recorded answers go, to be written by `write_samples`. `incomplete`:
    the sessions whose turns were not all complete."""

    decided: _Batch
    undecided: _Batch
    incomplete: frozenset[str]

    @property
    def sessions(self) -> set[str]:
        """Of all its turns."""
        return {one.session_id for one in self.decided.taken.values()}

    def without(self, sessions: set[str]) -> Opened:
        """The same with nothing of these sessions."""
        return Opened(self.decided.without(sessions), self.undecided.without(sessions), self.incomplete - sessions)


def open_samples(
    connection: Connection, run: str, recipe: Recipe, taken: Sequence[Taken], models: Models | None
) -> Opened:
    """What becomes of the samples `taken` of a replay: of those whose turn is recorded and has none in the run yet.

    A turn that is complete is linked as `processors.linking.link` does it; with `models`, what rules and recorded
    answers tell is final at once, and the sample with it where nothing else is asked. Only reads, and needs no lock.
    """
    wanted = {"run": run, "turns": [one.turn_id for one in taken]}
    facts = {fact.turn_id: fact for fact in connection.exec_driver_sql(_FACTS, wanted)}
    batch = _linked(taken, facts, recipe)
    incomplete = frozenset(fact.session_id for fact in facts.values() if not fact.complete)
    if models is None:
        return Opened(batch, batch, incomplete)
    claims = [
        Claim(run=run, turn_id=row["turn_id"], signal=row["signal"], worker="", attempt=0, replayed=True)
        for rows in batch.evaluations.values()
        for row in rows
        if row["state"] != "done"
    ]
    outcomes = from_records(connection, claims, recipe, models)
    decided = _Batch(
        dict(batch.taken), batch.evaluations, {(one.claim.turn_id, one.claim.signal): one for one in outcomes}
    )
    needs = needs_of(recipe)
    if not (needs.text or needs.pairs or needs.prompt_scores):  # else `settle` reads more than is at hand
        for turn_id in decided.evaluations:
            decided.taken[turn_id] = _settled(decided, turn_id, facts[turn_id], recipe, needs)
    return Opened(decided, batch, incomplete)


def write_samples(connection: Connection, run: str, opened: Opened) -> int:
    """Insert them, with their evaluations and results, in the caller's transaction, which holds their sessions' locks.
    Returns how many were new; what is there already stays as it is, and of erased sessions nothing is taken."""
    if erased := erased_sessions(connection, opened.sessions):
        opened = opened.without(erased)
    try:
        with connection.begin_nested():
            new = _write(connection, run, opened.decided)
    except DBAPIError as err:
        if not opened.decided.outcomes or not is_refused(err):
            raise
        new = _write(connection, run, opened.undecided)  # the evaluator service tells which one was refused
    if opened.incomplete:  # a turn may have become complete since; who completed it could not see its sample
        link(connection, opened.incomplete)
    return new


def _linked(taken: Sequence[Taken], facts: Mapping[str, Any], recipe: Recipe) -> _Batch:
    alone = needs_of(recipe).unanswered
    batch = _Batch({})
    for one in taken:
        fact = facts.get(one.turn_id)
        if fact is None or one.turn_id in batch.taken:  # its event was refused, or it was taken before
            continue
        if fact.complete and not one.linked:
            if fact.answered or alone:
                batch.evaluations[one.turn_id] = evaluations_of(one, recipe)
                one = replace(one, linked=True)
            elif one.state == "pending":
                detail = DROP_REASONS["no_next_state"]
                one = replace(one, state="dropped", drop_reason="no_next_state", drop_detail=detail)
        batch.taken[one.turn_id] = one
    return batch


def _settled(batch: _Batch, turn_id: str, fact: Any, recipe: Recipe, needs: Needs) -> Taken:
    """The sample as `processors.settling.settle` would leave it."""
    one = batch.taken[turn_id]
    if one.state != "pending" or not batch.evaluations[turn_id]:
        return one
    reward, hint, teacher = (
        outcome.result if (outcome := batch.outcomes.get((turn_id, signal))) else None
        for signal in ("reward", "hint", "teacher")
    )
    idle = isinstance(hint, HintResult) and hint.status != "accepted"
    for row in batch.evaluations[turn_id]:
        known = row["state"] == "done" or (turn_id, row["signal"]) in batch.outcomes
        if not known and not (row["signal"] == "teacher" and row["state"] == "waiting" and idle):
            return one
    value = reward.value if isinstance(reward, RewardResult) else None
    scores = teacher if isinstance(teacher, TeacherScores) else None
    signals = Signals(group_id=fact.group_id, taught=scores is not None)
    if isinstance(reward, RewardResult):
        words = sanitise_text(reward.explanation)
        signals = replace(signals, reward_status=reward.status, reward=value, reward_explanation=words)
    if isinstance(hint, HintResult):
        reason = None if hint.reason is None else sanitise_text(hint.reason)
        signals = replace(signals, hint_status=hint.status, hint_reason=reason)
    why = why_not_trained(recipe, signals)
    if why is not None:
        return replace(one, state="dropped", drop_reason=why[0], drop_detail=why[1])
    content = SimpleNamespace(
        prompt_ids=fact.prompt_ids,
        response_ids=fact.response_ids,
        response_logprobs=fact.response_logprobs,
        group_id=fact.group_id,
        session_id=fact.session_id,
        ordinal=fact.ordinal,
        reward=value,
        teacher_logprobs=scores and scores.logprobs,
        topk_ids=scores and scores.topk_ids,
        topk_logprobs=scores and scores.topk_logprobs,
        hinted_prompt_ids=scores and scores.hinted_prompt_ids,
        student_ids=scores and scores.student_ids,
        student_logprobs=scores and scores.student_logprobs,
    )
    return replace(one, state="ready", content_digest=sample_digest_of(content, needs))


def _write(connection: Connection, run: str, batch: _Batch) -> int:
    taken = list(batch.taken.values())
    inserted = connection.exec_driver_sql(
        _SAMPLES,
        {
            "run": run,
            "samples": [sample_id(run, one.turn_id) for one in taken],
            "turns": [one.turn_id for one in taken],
            "sessions": [one.session_id for one in taken],
            "states": [one.state for one in taken],
            "reasons": [one.drop_reason for one in taken],
            "details": [one.drop_detail for one in taken],
            "linked": [one.linked for one in taken],
            "orders": [one.replay_order for one in taken],
            "digests": [one.content_digest for one in taken],
        },
    )
    new = set(inserted.scalars())
    rows = [row for turn_id, rows in batch.evaluations.items() if turn_id in new for row in rows]
    if not rows:
        return len(new)
    ended = [batch.outcomes.get((row["turn_id"], row["signal"])) for row in rows]
    opened = connection.exec_driver_sql(
        _EVALUATIONS,
        {
            "run": run,
            "turns": [row["turn_id"] for row in rows],
            "signals": [row["signal"] for row in rows],
            "states": [row["state"] if end is None else end.state for row, end in zip(rows, ended, strict=True)],
            "priorities": [row["priority"] for row in rows],
            "reasons": [row["reason"] if end is None else end.reason for row, end in zip(rows, ended, strict=True)],
        },
    )
    mine = {(turn_id, signal) for turn_id, signal in opened}
    write_results(connection, [outcome for key, outcome in batch.outcomes.items() if key in mine])
    open_ = [turn_id for turn_id, _ in batch.outcomes if turn_id in new and batch.taken[turn_id].state == "pending"]
    if open_:
        settle(connection, run, open_)
    return len(new)
