"""The teacher: log-probs of the original response ids after the prompt with the hint in it."""

from __future__ import annotations

import asyncio
import base64
import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from sqlalchemy import Connection

from processors.evaluators.answers import answer_digest, keep_answer, known_answers, recorded_answer
from processors.evaluators.inputs import Turn
from processors.evaluators.server import ModelServer, PermanentFault
from processors.transactions import Transactions
from schemas.arrays import pack_floats, pack_ids, unpack_floats, unpack_ids
from schemas.digests import digest_of, sha256_hex
from schemas.text import sanitise

_ROUNDING = 1e-4
"""Above 0 by less than this a log-prob is a rounded 0."""
_IMPOSSIBLE = -9999.0
"""What vLLM writes for -inf."""
_SHAPES_THE_PROMPT = ("chat_template", "chat_template_kwargs", "documents", "reasoning_effort")
"""Request fields that change how a chat becomes tokens."""


Place = Literal["last_user", "system", "tool_result"]
"""Where the teacher sees the hint: at the end of the last user message, of the system message, or of the last result of
a tool."""

_RECORDED = """
SELECT DISTINCT ON (turn_id)
       turn_id, teacher, teacher_version AS version, hinted_prompt_ids, logprobs, top_k, topk_ids, topk_logprobs,
       mean_gain, answer_digest, question_digest
FROM teacher_scores JOIN unnest(%(turns)s::text[], %(questions)s::text[]) AS asked(turn_id, question_digest)
     USING (turn_id, question_digest)
ORDER BY turn_id, created_at, run
"""


class TeacherFailed(RuntimeError):
    """The teacher cannot score this turn and never will: the reason, beginning with one word that can be counted."""


@dataclass(frozen=True, kw_only=True)
class TeacherScores:
    """A row of `teacher_scores`: T response tokens, K alternatives a token, arrays as `schemas.arrays` packs them.

    `logprobs` float32 [T], `topk_ids` int32 [T, K], `topk_logprobs` float32 [T, K] by rank. `mean_gain`: mean of
    teacher minus behaviour log-prob, nats a token.
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


async def score_under_hint(
    server: ModelServer,
    transactions: Transactions,
    turn: Turn,
    hint: str,
    *,
    top_k: int,
    place: Place = "last_user",
    replayed: bool = False,
) -> TeacherScores:
    """Score `turn`'s response under `hint`.

    The server renders the turn's messages with and without the hint; the hint's tokens go into the prompt ids that
    the turn really saw (`hinted_prompt`), and the original response ids follow. `replayed`: the first scores that any
    run recorded for the same turn, hint, teacher and `top_k` count, whichever weight version gave them.

    Raises:
        TeacherFailed: the turn or the server's answer does not allow it.
        TransientFault: no answer now.
    """
    if turn.token_source != "engine" or not turn.prompt_ids or not turn.response_ids:
        raise TeacherFailed(f"no_engine_tokens: the turn's token source is {turn.token_source}")
    question = teacher_question(server.model, turn.turn_id, hint, top_k, place)
    if replayed and (found := await transactions.run(recorded_scores, {turn.turn_id: question})):
        return found[turn.turn_id]
    try:
        plain, hinted = await asyncio.gather(
            _render(server, turn, turn.messages), _render(server, turn, with_hint(turn.messages, hint, place))
        )
        prompt = hinted_prompt(unpack_ids(turn.prompt_ids).tolist(), plain, hinted)
    except PermanentFault as fault:
        raise TeacherFailed(f"refused: {fault}") from fault
    response = unpack_ids(turn.response_ids).tolist()
    scored = await scores_of(server, transactions, prompt, response, top_k=top_k, question=question, replayed=replayed)
    return replace(scored, hinted_prompt_ids=pack_ids(prompt), mean_gain=mean_gain(scored.logprobs, turn))


async def scores_of(
    server: ModelServer,
    transactions: Transactions,
    prompt: list[int],
    response: list[int],
    *,
    top_k: int,
    question: str,
    replayed: bool,
) -> TeacherScores:
    """The server's scores of `response` after `prompt`, with all ids that were scored as `hinted_prompt_ids`.

    Raises:
        TeacherFailed: the server's answer does not allow it.
        TransientFault: no answer now.
    """
    try:
        answer, digest = await _scores(server, transactions, prompt, response, top_k, replayed)
    except PermanentFault as fault:
        raise TeacherFailed(f"refused: {fault}") from fault
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
    )


def mean_gain(logprobs: bytes, turn: Turn) -> float | None:
    """Mean of teacher minus behaviour log-prob, nats a token, over the tokens that the teacher scored; None where there
    is none, or where nobody knows the behaviour's."""
    if len(logprobs) != len(turn.response_logprobs):
        return None
    gain = unpack_floats(logprobs).astype(np.float64) - unpack_floats(turn.response_logprobs)
    there = np.isfinite(gain)
    return float(gain[there].mean()) if there.any() else None


def teacher_question(model: str, turn_id: str, hint: str, top_k: int, place: Place) -> str:
    """Digest of what a teacher is asked, whichever weight version of it answers."""
    where = [] if place == "last_user" else [place]
    return digest_of(["teacher", model, turn_id, sanitise(hint)[0], top_k, *where])


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


def with_hint(messages: list[dict[str, Any]], hint: str, place: Place = "last_user") -> list[dict[str, Any]]:
    """`messages` with `hint` appended to the last user message, to the system message, or to the last result of a tool
    since the last user message, after an empty line; the others as they are. Where there is no system message, the
    hint becomes it; where there is no such result, the last user message has it.

    Raises:
        TeacherFailed: there is no user message, or its content is neither text nor parts.
    """
    if place == "system":
        if not messages or messages[0].get("role") not in ("system", "developer"):
            return [{"role": "system", "content": hint}, *messages]
        return [_appended(messages[0], hint), *messages[1:]]
    for number in range(len(messages) - 1, -1, -1):
        role = messages[number].get("role")
        if role == "user" or (role == "tool" and place == "tool_result"):
            return [*messages[:number], _appended(messages[number], hint), *messages[number + 1 :]]
    raise TeacherFailed("no_user_message: there is nothing to append the hint to")


def _appended(message: dict[str, Any], hint: str) -> dict[str, Any]:
    content = message.get("content") or ""
    if isinstance(content, str):
        return {**message, "content": f"{content}\n\n{hint}"}
    if isinstance(content, list):
        return {**message, "content": [*content, {"type": "text", "text": f"\n\n{hint}"}]}
    raise TeacherFailed(f"no_user_message: the message's content is a {type(content).__name__}")


def hinted_prompt(stored: list[int], plain: list[int], hinted: list[int]) -> list[int]:
    """The prompt that the turn saw, with the hint in it.

    `plain` and `hinted` are the server's renderings without and with the hint: they differ from one place on. What
    is before that place is taken from `stored`, for those are the ids that the policy really saw; from there on
    `stored` must read as `plain` does. (A rendering can differ before it, because the log does not keep the order of
    keys in a tool's schema.) Where `stored == plain`, the result is `hinted`.

    Raises:
        TeacherFailed: `stored` does not end as `plain` does.
    """
    same = next(
        (i for i, (a, b) in enumerate(zip(plain, hinted, strict=False)) if a != b), min(len(plain), len(hinted))
    )
    rest = len(plain) - same
    if rest == 0 or len(stored) < rest or stored[len(stored) - rest :] != plain[same:]:
        raise TeacherFailed(
            f"prompt_render_mismatch: the teacher renders {len(plain)} prompt tokens, the turn saw {len(stored)}, and "
            f"they differ after the last user message; do both servers use the same chat template?"
        )
    return stored[: len(stored) - rest] + hinted[same:]


def read_prompt_logprobs(
    entries: list[dict[str, Any] | None], start: int, response_ids: list[int], top_k: int
) -> tuple[list[float], list[list[int]], list[list[float]]]:
    """Log-prob of each response token, and ids and log-probs of the `top_k` likeliest tokens in its place, by rank.

    `entries[i]` maps token ids (as text) to log-prob and rank in place i; the token that stands there is always
    among them, beside the top k where it is not one of them. `start` is the first response token's place: its
    log-prob is the one given the whole prompt. A token that the teacher holds for impossible has -inf: it teaches
    nothing by itself, and the others stay.

    Raises:
        TeacherFailed: a place is missing, holds another token, has not `top_k` ranks, or a value is no log-prob.
    """
    if len(entries) != start + len(response_ids):
        raise TeacherFailed(f"length: {len(entries)} places for {start} prompt and {len(response_ids)} response ids")
    logprobs, topk_ids, topk_logprobs = [], [], []
    for place, token in enumerate(response_ids):
        entry = entries[start + place] or {}
        chosen = entry.get(str(token))
        if chosen is None:
            raise TeacherFailed(f"ids: response token {place} is {token}, which the answer does not score")
        ranked = sorted((item["rank"], int(key), item["logprob"]) for key, item in entry.items())
        top = [item for item in ranked if item[0] is not None and item[0] <= top_k]
        if [rank for rank, _, _ in top] != list(range(1, top_k + 1)):
            raise TeacherFailed(f"topk: response token {place} has ranks {[r for r, _, _ in ranked]}, not 1 to {top_k}")
        values = [_log_prob(value) for value in (chosen["logprob"], *(value for _, _, value in top))]
        if any(math.isnan(value) for value in values):
            raise TeacherFailed(f"not_a_number: response token {place} has log-probs {chosen['logprob']}, {top}")
        logprobs.append(values[0])
        topk_ids.append([token_id for _, token_id, _ in top])
        topk_logprobs.append(values[1:])
    return logprobs, topk_ids, topk_logprobs


def _log_prob(value: object) -> float:
    """NaN for what is no number. vLLM writes -inf as a very low number, since JSON has none: taken as it stands, that
    one token's advantage would be thousands of nats."""
    if not isinstance(value, (int, float)) or value > _ROUNDING:
        return math.nan
    return -math.inf if value <= _IMPOSSIBLE else float(value)


async def _scores(
    server: ModelServer,
    transactions: Transactions,
    prompt: list[int],
    response: list[int],
    top_k: int,
    replayed: bool,
) -> tuple[dict[str, Any], str]:
    token_ids = prompt + response

    def digest_at(version: str | None) -> str:
        return answer_digest(
            purpose="teacher",
            model=server.model,
            version=version,
            prompt_digest=None,
            rendered=[len(prompt), sha256_hex(pack_ids(token_ids))],
            sampling={"prompt_logprobs": top_k},
            vote=None,
        )

    question = digest_at(None)
    if replayed and (found := await transactions.run(recorded_answer, question)) is not None:
        return found
    digest = digest_at(await server.version())
    kept = (await transactions.run(known_answers, [digest])).get(digest)
    if kept is not None:
        return kept, digest
    body = {
        "model": server.model,
        "token_ids": token_ids,
        "sampling_params": {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": top_k},
    }
    plain = await server.post("/inference/v1/generate", body)
    entries = plain.get("prompt_logprobs")
    if not isinstance(entries, list):
        raise TeacherFailed("no_prompt_logprobs: the server does not score prompts")
    logprobs, topk_ids, topk_logprobs = read_prompt_logprobs(entries, len(prompt), response, top_k)
    version = _tag(plain)
    answer = {
        "version": version,
        "logprobs": _base64(pack_floats(logprobs)),
        "topk_ids": _base64(pack_ids(np.asarray(topk_ids).ravel())),
        "topk_logprobs": _base64(pack_floats(np.asarray(topk_logprobs).ravel())),
    }
    if version is not None:  # the version that answered, should the weights have changed since we asked which it is
        digest = digest_at(version)
    keep = transactions.run(
        keep_answer, digest, question=question, purpose="teacher", model=server.model, answer=answer
    )
    return await keep, digest


async def _render(server: ModelServer, turn: Turn, messages: list[dict[str, Any]]) -> list[int]:
    body: dict[str, Any] = {"model": server.model, "messages": messages, "max_tokens": 1}
    body |= {name: turn.sampling[name] for name in _SHAPES_THE_PROMPT if turn.sampling.get(name) is not None}
    if turn.tools:  # "none" only concerns the answer's parsing; the tools are in the prompt all the same
        body |= {"tools": turn.tools, "tool_choice": "none"}
    plain = await server.post("/v1/chat/completions/render", body)
    token_ids = plain.get("token_ids")
    if not isinstance(token_ids, list):
        raise TeacherFailed("no_render: the server does not render chats to token ids")
    return [int(token) for token in token_ids]


def _tag(plain: dict[str, Any]) -> str | None:
    """The weight version of the answer, None where the server does not say."""
    spans = plain["choices"][0].get("weight_versions") or []
    return str(spans[-1]["version"]) if spans else None


def _number(tag: str | None) -> int | None:
    return int(tag) if tag is not None and tag.isdecimal() else None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
