"""Settling: a sample whose evaluations are all final becomes ready to train, or is dropped with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from processors.linking import recipes_of
from schemas.digests import sample_digest_of
from schemas.recipes import Needs, Recipe, needs_of
from schemas.states import SAMPLE_TRANSITIONS, must_follow

LOCK = """
SELECT sample_id FROM samples
WHERE run = %(run)s AND turn_id = ANY(%(turns)s) AND state = 'pending' AND linked
ORDER BY sample_id
FOR UPDATE
"""
"""Two evaluations of one turn may finish at the same time in two transactions. Each has updated its own row and sees
the other's as unfinished, so neither would settle the sample. The lock makes the second wait; the statements after
it then see what the first has committed. In sorted order, so that two batches cannot wait for each other."""

_AT_ONCE = 512
"""Samples whose messages are read together: they may be a megabyte each."""

READING = "SELECT EXISTS (SELECT 1 FROM replays WHERE run = %(run)s AND NOT read)"
"""Asked with the samples locked: who settles before the mark leaves them to `settle_read`, who waits for its locks sees
the mark."""

FINAL = """
SELECT s.sample_id, s.turn_id,
       t.group_id,
       t.finish_reason = 'length' AS truncated, corrected.feedback_id,
       w.status AS reward_status, w.value AS reward, w.explanation AS reward_explanation,
       h.status AS hint_status, h.reason AS hint_reason,
       teach.state AS teacher_state, teach.reason AS teacher_reason,
       c.turn_id IS NOT NULL AS taught
FROM samples s
JOIN turns t ON t.turn_id = s.turn_id
LEFT JOIN rewards w ON w.run = s.run AND w.turn_id = s.turn_id
LEFT JOIN hints h ON h.run = s.run AND h.turn_id = s.turn_id
LEFT JOIN evaluations teach ON teach.run = s.run AND teach.turn_id = s.turn_id AND teach.signal = 'teacher'
LEFT JOIN teacher_scores c ON c.run = s.run AND c.turn_id = s.turn_id
LEFT JOIN LATERAL (
    SELECT f.feedback_id FROM feedback f
    WHERE %(pairs)s AND f.turn_id = s.turn_id AND f.correction IS NOT NULL AND btrim(f.correction, E' \\t\\r\\n') <> ''
      AND f.correction IS DISTINCT FROM t.response ->> 'content'
    ORDER BY f.given_at DESC NULLS LAST, f.feedback_id LIMIT 1
) corrected ON true
WHERE s.sample_id = ANY(%(samples)s)
  AND NOT EXISTS (
      SELECT 1 FROM evaluations e
      WHERE e.run = s.run AND e.turn_id = s.turn_id AND e.state NOT IN ('done', 'failed'))
"""

CONTENT = """
SELECT s.sample_id, t.prompt_ids, t.response_ids, t.response_logprobs, w.value AS reward,
       c.logprobs AS teacher_logprobs, c.topk_ids, c.topk_logprobs,
       c.student_ids, c.student_logprobs,
       t.group_id, t.session_id, t.ordinal, t.parent_turn_id, t.token_source, t.finish_reason,
       CASE WHEN %(hinted)s THEN c.hinted_prompt_ids END AS hinted_prompt_ids,
       CASE WHEN %(text)s THEN t.messages END AS messages, CASE WHEN %(text)s THEN t.tools END AS tools,
       CASE WHEN %(text)s THEN t.response END AS response, f.correction
FROM samples s
JOIN unnest(%(samples)s::text[], %(feedback)s::text[]) AS chosen(sample_id, feedback_id) USING (sample_id)
JOIN turns t ON t.turn_id = s.turn_id
LEFT JOIN feedback f ON f.feedback_id = chosen.feedback_id
LEFT JOIN rewards w ON w.run = s.run AND w.turn_id = s.turn_id
LEFT JOIN teacher_scores c ON c.run = s.run AND c.turn_id = s.turn_id
"""

READY = """
UPDATE samples s SET state = 'ready', ready_at = now(), updated_at = now(), content_digest = new.digest,
       feedback_id = new.feedback_id
FROM unnest(%(samples)s::text[], %(digests)s::text[], %(feedback)s::text[]) AS new(sample_id, digest, feedback_id)
WHERE s.sample_id = new.sample_id AND s.state = 'pending'
"""

DROP = """
UPDATE samples s SET state = 'dropped', drop_reason = new.reason, drop_detail = new.detail, updated_at = now()
FROM unnest(%(samples)s::text[], %(reasons)s::text[], %(details)s::text[]) AS new(sample_id, reason, detail)
WHERE s.sample_id = new.sample_id AND s.state = 'pending'
"""


@dataclass(frozen=True, kw_only=True)
class Signals:
    """The final signals of one sample; None where the recipe asks for no such signal."""

    reward_status: str | None = None
    reward: float | None = None
    reward_explanation: str | None = None
    hint_status: str | None = None
    hint_reason: str | None = None
    teacher_state: str | None = None
    teacher_reason: str | None = None
    taught: bool = False
    group_id: str | None = None
    truncated: bool = False
    feedback_id: str | None = None
    """The newest correction of the turn, for recipes that compare pairs."""


@dataclass(frozen=True)
class Settled:
    """What one call of `settle` changed."""

    ready: int
    dropped: int


def why_not_trained(recipe: Recipe, signals: Signals) -> tuple[str, str] | None:
    """Drop reason and detail of a sample whose signals are final; None where one carries a gradient.

    A signal carries one where the recipe weighs it and it is a reward, or teacher scores. A reward of 0 is one only
    where the recipe compares rewards with others; where it compares the candidates of one prompt, a turn that is no
    candidate is `uninformative`. A recipe of pairs takes a correction for one, and one that imitates every answer needs
    no reward. Where text is trained, an answer that was cut off says nothing, if the recipe leaves such out. Else the
    first of these that holds is the reason: a failed judge (`reward_failed`), a failed hint giver or teacher
    (`hint_failed`), too few valid votes (`reward_abstained`), and otherwise `no_signal`. Faults come first, since
    somebody can mend them.
    """
    rewarded, hinted, needs = recipe.loss.w_rl != 0, recipe.loss.w_opd != 0, needs_of(recipe)
    corrected = needs.pairs and signals.feedback_id is not None
    if needs.text and signals.truncated and not recipe.loss.train_truncated and not corrected:
        return "no_signal", "cut off at the length limit"
    if corrected or needs.unrewarded:
        return None
    scored = rewarded and signals.reward is not None and (signals.reward != 0 or needs.zero_counts)
    if needs.liked_only:
        scored = scored and signals.reward is not None and signals.reward > 0
    alone = needs.groups and signals.group_id is None
    if (scored and not alone) or (hinted and signals.taught):
        return None
    if scored:
        return (
            "uninformative",
            f"reward {signals.reward:g}, and the turn is no candidate of a group (it has no group_id)",
        )
    if rewarded and signals.reward_status == "failed":
        return "reward_failed", signals.reward_explanation or "the judge failed"
    if hinted and signals.hint_status == "failed":
        return "hint_failed", f"hint: {signals.hint_reason or 'failed'}"
    if hinted and signals.teacher_state == "failed":
        return "hint_failed", f"teacher: {signals.teacher_reason or 'failed'}"
    if rewarded and signals.reward_status == "abstained":
        return "reward_abstained", signals.reward_explanation or "too few valid votes"
    told = [
        f"reward {'absent' if signals.reward is None else f'{signals.reward:g}'} ({signals.reward_status})"
        if rewarded
        else None,
        f"hint {signals.hint_status}" if hinted else None,
    ]
    return "no_signal", ", ".join(words for words in told if words)


def settle(connection: Connection, run: str, turn_ids: Iterable[str]) -> Settled:
    """Decide the pending samples of `turn_ids` whose evaluations are all final, in the caller's transaction.

    Call it after writing the evaluations' results, in the same transaction. A sample with unfinished evaluations,
    or one that is decided already, is left as it is; calling it again changes nothing. Where a replay looks for pairs,
    all wait for the end of its log (`settle_read`): a correction may stand anywhere on it.
    """
    turns = sorted(set(turn_ids))
    locked = connection.exec_driver_sql(LOCK, {"run": run, "turns": turns}).scalars().all()
    if not locked:
        return Settled(0, 0)
    recipe = recipes_of(connection, [run])[run]
    needs = needs_of(recipe)
    if needs.pairs and connection.exec_driver_sql(READING, {"run": run}).scalar_one():
        return Settled(0, 0)
    final = connection.exec_driver_sql(FINAL, {"samples": list(locked), "pairs": needs.pairs}).all()
    verdicts = [(row, why_not_trained(recipe, _signals(row))) for row in final]
    ready = {row.sample_id: row.feedback_id for row, reason in verdicts if reason is None}
    dropped = [(row.sample_id, reason) for row, reason in verdicts if reason is not None]
    _make_ready(connection, ready, needs)
    _drop(connection, dropped)
    return Settled(len(ready), len(dropped))


def settle_read(connection: Connection, run: str) -> None:
    """Decide what waited for the end of a replay's log, in the transaction that marks it read."""
    if not needs_of(recipes_of(connection, [run])[run]).pairs:
        return
    waiting = connection.exec_driver_sql(
        "SELECT turn_id FROM samples WHERE run = %(run)s AND state = 'pending' AND linked", {"run": run}
    )
    turns = sorted(waiting.scalars())
    for start in range(0, len(turns), _AT_ONCE):
        settle(connection, run, turns[start : start + _AT_ONCE])


def _signals(row: Any) -> Signals:
    return Signals(
        reward_status=row.reward_status,
        reward=row.reward,
        reward_explanation=row.reward_explanation,
        hint_status=row.hint_status,
        hint_reason=row.hint_reason,
        teacher_state=row.teacher_state,
        teacher_reason=row.teacher_reason,
        taught=row.taught,
        group_id=row.group_id,
        truncated=row.truncated,
        feedback_id=row.feedback_id,
    )


def _make_ready(connection: Connection, ready: Mapping[str, str | None], needs: Needs) -> None:
    """`ready`: samples, each with the correction that it is trained with."""
    if not ready:
        return
    must_follow(SAMPLE_TRANSITIONS, "pending", "ready")
    chosen = {"samples": list(ready), "feedback": list(ready.values())}
    wanted = {**chosen, "hinted": needs.hinted_prompt or needs.prompt_scores, "text": needs.text}
    digests = {row.sample_id: sample_digest_of(row, needs) for row in connection.exec_driver_sql(CONTENT, wanted)}
    connection.exec_driver_sql(READY, {**chosen, "digests": [digests[sample] for sample in ready]})


def _drop(connection: Connection, dropped: Sequence[tuple[str, tuple[str, str]]]) -> None:
    if not dropped:
        return
    must_follow(SAMPLE_TRANSITIONS, "pending", "dropped")
    connection.exec_driver_sql(
        DROP,
        {
            "samples": [sample for sample, _ in dropped],
            "reasons": [reason for _, (reason, _) in dropped],
            "details": [detail for _, (_, detail) in dropped],
        },
    )
