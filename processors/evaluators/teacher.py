"""The teacher: log-probs of the original response ids after the prompt with the hint in it."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from processors.evaluators.hinted import hinted_prompt, render, too_long, with_hint
from processors.evaluators.inputs import Turn
from processors.evaluators.kept_scores import Asking, Key, kept_scores
from processors.evaluators.score_reading import TeacherFailed
from processors.evaluators.server import ModelServer, PermanentFault
from processors.evaluators.wanted import Wanted
from schemas.arrays import pack_ids, unpack_floats, unpack_ids
from schemas.digests import digest_of
from schemas.text import sanitise

_RECORDED = """
SELECT DISTINCT ON (turn_id)
       turn_id, teacher, teacher_version AS version, hinted_prompt_ids, logprobs, top_k, topk_ids, topk_logprobs,
       mean_gain, answer_digest, question_digest, student_k, student_ids, student_logprobs, student_version
FROM teacher_scores JOIN unnest(%(turns)s::text[], %(questions)s::text[]) AS asked(turn_id, question_digest)
     USING (turn_id, question_digest)
ORDER BY turn_id, created_at, run
"""


@dataclass(frozen=True, kw_only=True)
class TeacherScores:
    """A row of `teacher_scores`: T response tokens, K alternatives a token, arrays as `schemas.arrays` packs them.

    `logprobs` float32 [T], `topk_ids` int32 [T, K], `topk_logprobs` float32 [T, K] by rank. `mean_gain`: mean of
    teacher minus behaviour log-prob, nats a token. `student_ids` int32 [T, J]: the likeliest to the policy of
    `student_version`; `student_logprobs` float32 [T, J]: the teacher's of those, NaN where not known. `note`: why
    something that was wanted is not there.
    """

    teacher: str
    version: int | None
    hinted_prompt_ids: bytes
    logprobs: bytes
    top_k: int
    topk_ids: bytes
    topk_logprobs: bytes
    mean_gain: float | None
    answer_digest: str
    question_digest: str
    student_k: int | None = None
    student_ids: bytes | None = None
    student_logprobs: bytes | None = None
    student_version: int | None = None
    note: str | None = None


async def score_under_hint(asking: Asking, turn: Turn, hint: str, wanted: Wanted) -> TeacherScores:
    """Score `turn`'s response under `hint`.

    The server renders the turn's messages with and without the hint; the hint's tokens go into the prompt ids that
    the turn really saw (`hinted_prompt`), and the original response ids follow.

    Raises:
        TeacherFailed: the turn or the server's answer does not allow it.
        TransientFault: no answer now.
    """
    if turn.token_source != "engine" or not turn.prompt_ids or not turn.response_ids:
        raise TeacherFailed(f"no_engine_tokens: the turn's token source is {turn.token_source}")
    server = asking.teacher
    question = teacher_question(server.model, turn.turn_id, hint, wanted)
    if asking.replayed and (found := await asking.transactions.run(recorded_scores, {turn.turn_id: question})):
        return found[turn.turn_id]
    messages, response = with_hint(turn.messages, hint, wanted.place), unpack_ids(turn.response_ids).tolist()
    try:
        plain, hinted = await asyncio.gather(render(server, turn, turn.messages), render(server, turn, messages))
    except PermanentFault as fault:
        long = await too_long(server, turn, messages, len(response))
        raise TeacherFailed(long or f"refused: {fault}") from fault
    prompt = hinted_prompt(unpack_ids(turn.prompt_ids).tolist(), plain, hinted)
    scored = await scores_of(asking, turn, prompt, response, wanted, question)
    return replace(scored, hinted_prompt_ids=pack_ids(prompt), mean_gain=mean_gain(scored.logprobs, turn))


async def scores_of(
    asking: Asking, turn: Turn, prompt: list[int], response: list[int], wanted: Wanted, question: str
) -> TeacherScores:
    """The teacher's scores of `response` after `prompt`, with all ids that were scored as `hinted_prompt_ids`.

    Where the policy cannot say what is likeliest to it, the scores come without those, and `note` says why.

    Raises:
        TeacherFailed: the server's answer does not allow it.
        TransientFault: no answer now.
    """
    student, note, at_ids = None, None, None
    if wanted.student_k:
        try:
            student = await own_scores(asking, turn, response, wanted.student_k)
            at_ids = unpack_ids(student.topk_ids).reshape(-1, wanted.student_k)
        except TeacherFailed as fault:
            note = f"student_ids: the policy's server did not name them: {fault}"
    return replace(
        await _kept(asking, asking.teacher, prompt, response, wanted.top_k, question, wanted.version, at_ids),
        student_k=wanted.student_k if student else None,
        student_ids=student.topk_ids if student else None,
        student_version=student.version if student else None,
        note=note,
    )


async def own_scores(asking: Asking, turn: Turn, response: list[int], top_k: int) -> TeacherScores:
    """The policy's own `top_k` likeliest tokens in each place of `response`, after the prompt that it saw.

    Raises:
        TeacherFailed: the turn has no engine's tokens, or the server's answer does not allow it.
        TransientFault: no answer now.
    """
    if turn.token_source != "engine" or not turn.prompt_ids:
        raise TeacherFailed(f"no_engine_tokens: the turn's token source is {turn.token_source}")
    question = digest_of(["own", asking.policy.model, turn.turn_id, top_k])
    prompt = unpack_ids(turn.prompt_ids).tolist()
    return await _kept(asking, asking.policy, prompt, response, top_k, question, None, None)


def mean_gain(logprobs: bytes, turn: Turn) -> float | None:
    """Mean of teacher minus behaviour log-prob, nats a token, over the tokens that the teacher scored; None where there
    is none, or where nobody knows the behaviour's."""
    if len(logprobs) != len(turn.response_logprobs):
        return None
    gain = unpack_floats(logprobs).astype(np.float64) - unpack_floats(turn.response_logprobs)
    there = np.isfinite(gain)
    return float(gain[there].mean()) if there.any() else None


def teacher_question(model: str, turn_id: str, hint: str, wanted: Wanted) -> str:
    """Digest of what a teacher is asked, whichever weight version of it answers."""
    where = [] if wanted.place == "last_user" else [wanted.place]
    return digest_of(["teacher", model, turn_id, sanitise(hint)[0], wanted.top_k, *where, *wanted.more])


def recorded_scores(connection: Connection, questions: dict[str, str]) -> dict[str, TeacherScores]:
    """By turn, the first scores that any run recorded to its question; only of turns that have some."""
    if not questions:
        return {}
    wanted = {"turns": list(questions), "questions": list(questions.values())}
    found: dict[str, TeacherScores] = {}
    for row in connection.exec_driver_sql(_RECORDED, wanted).mappings():
        fields = dict(row)
        found[fields.pop("turn_id")] = TeacherScores(**fields)
    return found


async def _kept(
    asking: Asking,
    server: ModelServer,
    prompt: list[int],
    response: list[int],
    top_k: int,
    question: str,
    pinned: int | None,
    at_ids: NDArray[np.int32] | None,
) -> TeacherScores:
    """`server`'s scores: those that are kept, else it is asked, and its answer kept."""
    key = Key(server.model, prompt, response, top_k, at_ids)
    answer, digest = await kept_scores(asking, server, key, pinned)
    return TeacherScores(
        teacher=server.model,
        version=_number(answer["version"]),
        hinted_prompt_ids=pack_ids(prompt + response),
        logprobs=base64.b64decode(answer["logprobs"]),
        top_k=top_k,
        topk_ids=base64.b64decode(answer["topk_ids"]),
        topk_logprobs=base64.b64decode(answer["topk_logprobs"]),
        mean_gain=None,
        answer_digest=digest,
        question_digest=question,
        student_logprobs=None if at_ids is None else base64.b64decode(answer["at_ids"]),
    )


def _number(tag: str | None) -> int | None:
    return int(tag) if tag is not None and tag.isdecimal() else None
