"""Finishing evaluations: results, votes, what they open or announce, and the samples they settle, all or nothing.

Everything happens in one transaction that begins by changing the evaluation's own row, and only where the worker still
holds the very claim that it answers. So an evaluation is finished once, whatever died or stalled on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection

from processors.evaluators.hint import HintResult
from processors.evaluators.judge import RewardResult
from processors.evaluators.queue import Claim, finish
from processors.evaluators.teacher import TeacherScores
from processors.evaluators.votes import Vote
from processors.inserting import insert_new
from processors.settling import settle
from schemas import tables
from schemas.digests import canonical_json, content_id
from schemas.messages import SIGNAL_FINAL, SignalFinal
from schemas.states import EVALUATION_TRANSITIONS, must_follow
from schemas.text import sanitise_text
from schemas.topics import MAX_EVENT_BYTES, SIGNALS

OPEN_TEACHER = """
UPDATE evaluations e SET state = new.state, reason = new.reason,
       finished_at = CASE WHEN new.state = 'done' THEN now() END
FROM unnest(%(runs)s::text[], %(turns)s::text[], %(states)s::text[], %(reasons)s::text[])
     AS new(run, turn_id, state, reason)
WHERE (e.run, e.turn_id, e.signal) = (new.run, new.turn_id, 'teacher') AND e.state = 'waiting'
"""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one claim. `result` None: a teacher that failed, for `reason`; else what is missing in it."""

    claim: Claim
    session_id: str
    result: RewardResult | HintResult | TeacherScores | None
    votes: tuple[Vote, ...] = ()
    reason: str | None = None

    @property
    def state(self) -> Literal["done", "failed"]:
        """The state that its evaluation ends in."""
        if self.result is None or getattr(self.result, "status", None) == "failed":
            return "failed"
        return "done"


def complete(connection: Connection, outcomes: Sequence[Outcome]) -> list[Claim]:
    """Write `outcomes` in the caller's transaction. Returns the claims that were lost: of those nothing is written.

    A hint that is final decides over its teacher: accepted opens it, otherwise it has nothing to do.
    """
    held = finish(
        connection,
        [outcome.claim for outcome in outcomes],
        [outcome.state for outcome in outcomes],
        [_clean(outcome.reason) for outcome in outcomes],
    )
    kept = [outcome for outcome in outcomes if outcome.claim in held]
    write_results(connection, kept)
    for run in sorted({outcome.claim.run for outcome in kept}):
        settle(connection, run, [outcome.claim.turn_id for outcome in kept if outcome.claim.run == run])
    return [outcome.claim for outcome in outcomes if outcome.claim not in held]


def write_results(connection: Connection, kept: Sequence[Outcome]) -> None:
    """Write the results of evaluations whose own rows this transaction has made final, open the teachers that they
    allow, and leave their announcements in the outbox. Their samples are still to be settled."""
    insert_new(connection, tables.votes, [row for outcome in kept for row in _vote_rows(outcome)])
    insert_new(connection, tables.rewards, [_reward_row(o) for o in kept if isinstance(o.result, RewardResult)])
    hints = [outcome for outcome in kept if isinstance(outcome.result, HintResult)]
    insert_new(connection, tables.hints, [_hint_row(outcome) for outcome in hints])
    insert_new(connection, tables.teacher_scores, [_score_row(o) for o in kept if isinstance(o.result, TeacherScores)])
    _decide_teachers(connection, hints)
    announcements = [_announcement(o) for o in kept if isinstance(o.result, (RewardResult, HintResult))]
    insert_new(connection, tables.outbox, announcements)


def _key(outcome: Outcome) -> dict[str, Any]:
    return {"run": outcome.claim.run, "turn_id": outcome.claim.turn_id}


def _clean(text: str | None) -> str | None:
    return None if text is None else sanitise_text(text)


def _vote_rows(outcome: Outcome) -> list[dict[str, Any]]:
    return [
        {
            **_key(outcome),
            "signal": outcome.claim.signal,
            "vote": number,
            "annotator_kind": vote.annotator_kind,
            "annotator": _clean(vote.annotator),
            "status": vote.status,
            "score": vote.score,
            "explanation": _clean(vote.explanation),
            "raw": _clean(vote.raw),
            "prompt_digest": vote.prompt_digest,
            "answer_digest": vote.answer_digest,
        }
        for number, vote in enumerate(outcome.votes)
    ]


def _reward_row(outcome: Outcome) -> dict[str, Any]:
    result = outcome.result
    assert isinstance(result, RewardResult)
    return {
        **_key(outcome),
        "status": result.status,
        "value": result.value,
        "annotator_kind": result.annotator_kind,
        "votes_valid": result.votes_valid,
        "votes_total": result.votes_total,
        "explanation": _clean(result.explanation),
    }


def _hint_row(outcome: Outcome) -> dict[str, Any]:
    result = outcome.result
    assert isinstance(result, HintResult)
    return {
        **_key(outcome),
        "status": result.status,
        "text": _clean(result.text),
        "annotator_kind": result.annotator_kind,
        "votes_valid": result.votes_valid,
        "votes_total": result.votes_total,
        "reason": _clean(result.reason),
    }


def _score_row(outcome: Outcome) -> dict[str, Any]:
    result = outcome.result
    assert isinstance(result, TeacherScores)
    return {
        **_key(outcome),
        "teacher": result.teacher,
        "teacher_version": result.version,
        "hinted_prompt_ids": result.hinted_prompt_ids,
        "logprobs": result.logprobs,
        "top_k": result.top_k,
        "topk_ids": result.topk_ids,
        "topk_logprobs": result.topk_logprobs,
        "mean_gain": result.mean_gain,
        "answer_digest": result.answer_digest,
        "question_digest": result.question_digest,
        "student_k": result.student_k,
        "student_ids": result.student_ids,
        "student_logprobs": result.student_logprobs,
        "student_version": result.student_version,
    }


def _decide_teachers(connection: Connection, hints: Sequence[Outcome]) -> None:
    if not hints:
        return
    states, reasons = [], []
    for outcome in hints:
        assert isinstance(outcome.result, HintResult)
        accepted = outcome.result.status == "accepted"
        states.append("open" if accepted else "done")
        reasons.append(None if accepted else f"no hint: {outcome.result.status}")
        must_follow(EVALUATION_TRANSITIONS, "waiting", states[-1])
    connection.exec_driver_sql(
        OPEN_TEACHER,
        {
            "runs": [outcome.claim.run for outcome in hints],
            "turns": [outcome.claim.turn_id for outcome in hints],
            "states": states,
            "reasons": reasons,
        },
    )


def _announcement(outcome: Outcome) -> dict[str, Any]:
    result, claim = outcome.result, outcome.claim
    assert isinstance(result, (RewardResult, HintResult))
    about: dict[str, Any] = {
        "run": claim.run,
        "session_id": outcome.session_id,
        "turn_id": claim.turn_id,
        "signal": claim.signal,
        "status": result.status,
        "annotator_kind": result.annotator_kind,
    }
    if isinstance(result, RewardResult):
        about |= {"value": result.value, "explanation": _clean(result.explanation)}
    else:
        about |= {"text": _clean(result.text), "explanation": _clean(result.reason)}
    value = canonical_json(SignalFinal(**about))
    if len(value) > MAX_EVENT_BYTES:  # no broker takes it; whoever needs the words has the table
        about |= {"text": None, "explanation": f"{len(value)} bytes: read the tables hints and rewards"}
        value = canonical_json(SignalFinal(**about))
    return {
        "topic": SIGNALS,
        "message_id": content_id("signal", claim.run, claim.turn_id, claim.signal),
        "message_type": SIGNAL_FINAL,
        "key": outcome.session_id,
        "value": value,
    }
