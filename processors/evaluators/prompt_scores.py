"""Asking a model server for the log-probs of given ids: of the token that stands in each place, of the likeliest there,
and of others that the caller names.

vLLM has two ways. Its newer runner (GPU) scores any ids beside a prompt, and may then read its prefix cache: what
prompts share is computed once, and a long response is scored in pieces whose answers are as long as the piece. The
older one (CPU) knows the likeliest only and computes every prompt whole; ids that are not among the likeliest are asked
for place by place, each as the next token after what stands before it. Reading the cache there beside prompt log-probs
would give memory that nobody wrote, so it is never asked for.

Shapes: T response tokens, K likeliest, J named ids a token.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from processors.evaluators.score_reading import TeacherFailed, log_prob, looked_up, read_at_ids, read_prompt_logprobs
from processors.evaluators.server import ModelServer, PermanentFault, TransientFault

GENERATE = "/inference/v1/generate"


@dataclass(frozen=True, eq=False)
class PromptScores:
    """`logprobs` float32 [T], `topk_ids` int32 and `topk_logprobs` float32 [T, K] by rank, `at_ids` float32 [T, J] of
    the ids that the caller named, NaN where the server did not tell; None where it named none. `version`: tag of the
    weights that scored, None where the server does not say."""

    version: str | None
    logprobs: NDArray[np.float32]
    topk_ids: NDArray[np.int32]
    topk_logprobs: NDArray[np.float32]
    at_ids: NDArray[np.float32] | None


class _Span(msgspec.Struct):
    version: str | int


class _Choice(msgspec.Struct):
    weight_versions: list[_Span] | None = None
    logprobs: Any = None


class _Answer(msgspec.Struct):
    """Places stay raw until they are read: as objects a long answer takes ten times its bytes."""

    choices: list[_Choice]
    prompt_logprobs: list[msgspec.Raw] | None = None
    prompt_token_id_logprobs: str | None = None

    @property
    def version(self) -> str | None:
        spans = self.choices[0].weight_versions
        return str(spans[-1].version) if spans else None


async def score_response(
    server: ModelServer,
    prompt: Sequence[int],
    response: Sequence[int],
    *,
    top_k: int,
    at_ids: NDArray[np.int32] | None = None,
    chunk: int | None = None,
) -> PromptScores:
    """Score `response` after `prompt`. `at_ids` int32 [T, J]: ids to score in each place. `chunk`: response tokens a
    request; None: as the server's configuration says where it can read its cache, else all at once.

    Raises:
        TeacherFailed: the server's answer does not allow it. `too_long` names both lengths.
        TransientFault: no answer now, or the weights changed between two pieces.
    """
    whole, start = [*prompt, *response], len(prompt)
    try:
        cached = await _scores_ids(server)
        chunk = server.config.chunk_tokens if chunk is None and cached else chunk
        parts = []
        for begin, end in pieces(start, len(whole), chunk):
            at = None if at_ids is None else at_ids[begin - start : end - start]
            parts.append(await _piece(server, whole[:end], begin, top_k, at, cached=cached))
    except PermanentFault as fault:
        long = length_fault(server, start, len(response), await _max_model_len(server))
        raise TeacherFailed(long or f"refused: {fault}") from fault
    _same_version(server, [part.version for part in parts])
    return PromptScores(
        parts[0].version,
        np.concatenate([part.logprobs for part in parts]),
        np.concatenate([part.topk_ids for part in parts]),
        np.concatenate([part.topk_logprobs for part in parts]),
        None if at_ids is None else np.concatenate([part.at_ids for part in parts if part.at_ids is not None]),
    )


def length_fault(server: ModelServer, prompt: int, response: int, limit: int | None) -> str | None:
    """Why tokens of these numbers are too many for a server of `limit` (one more is always generated); None where they
    are not, or where `limit` is not known."""
    if limit is None or prompt + response + 1 <= limit:
        return None
    return (
        f"too_long: {prompt} prompt and {response} response tokens are {prompt + response}, and {server.model} at "
        f"{server.config.url} takes {limit - 1} at most (its max_model_len is {limit})"
    )


def pieces(start: int, end: int, chunk: int | None) -> Iterator[tuple[int, int]]:
    """[start, end) in pieces of `chunk` places. A piece ends at an odd length: a block of a prefix cache has an even
    one, so what the next piece finds in the cache ends before its first place, whose score it still computes."""
    while chunk is not None and end - start > chunk:
        cut = start + chunk + (start + chunk + 1) % 2
        if cut >= end:
            break
        yield start, cut
        start = cut
    yield start, end


async def _piece(
    server: ModelServer, ids: list[int], begin: int, top_k: int, at_ids: NDArray[np.int32] | None, *, cached: bool
) -> PromptScores:
    """Scores of `ids[begin:]`."""
    sampling: dict[str, Any] = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": top_k}
    if cached and at_ids is not None:
        sampling |= {"prompt_logprob_token_ids": at_ids.tolist(), "prompt_logprob_start": begin - 1}
    answer, kept = None, 0
    if cached:
        answer = await _ask(server, ids, {**sampling, "skip_reading_prefix_cache": False})
        # What it read from its cache has no scores: its list then begins later.
        kept = max(0, len(ids) - len(answer.prompt_logprobs or ()))
        if kept > begin - 1 or (at_ids is not None and answer.prompt_token_id_logprobs is None):
            answer, kept = None, 0  # the cache reached into what is to be scored
    if answer is None:
        answer = await _ask(server, ids, sampling)
    if answer.prompt_logprobs is None:
        raise TeacherFailed("no_prompt_logprobs: the server does not score prompts")
    response = ids[begin:]
    scores = read_prompt_logprobs(answer.prompt_logprobs, begin - kept, response, top_k)
    logprobs = np.asarray(scores[0], np.float32)
    topk_ids, topk_logprobs = np.asarray(scores[1], np.int32), np.asarray(scores[2], np.float32)
    at = None
    if at_ids is not None and answer.prompt_token_id_logprobs is not None:
        at = read_at_ids(answer.prompt_token_id_logprobs, at_ids)
    elif at_ids is not None:
        chosen = np.concatenate([topk_ids, np.asarray(response, np.int32)[:, None]], axis=1)
        at = looked_up(at_ids, chosen, np.concatenate([topk_logprobs, logprobs[:, None]], axis=1))
        await _ask_places(server, ids, begin, at_ids, at, answer.version)
    return PromptScores(answer.version, logprobs, topk_ids, topk_logprobs, at)


async def _ask(server: ModelServer, ids: list[int], sampling: dict[str, Any]) -> _Answer:
    body = {"model": server.asked_as, "token_ids": ids, "sampling_params": sampling}
    return await server.post_as(GENERATE, body, _Answer)


async def _ask_places(
    server: ModelServer,
    ids: list[int],
    begin: int,
    at_ids: NDArray[np.int32],
    into: NDArray[np.float32],
    version: str | None,
) -> None:
    """Ask for those of `at_ids` that `into` does not know yet, a request a place, for as many as the configuration
    allows; the rest stay NaN."""
    places = np.flatnonzero(np.isnan(into).any(axis=1))[: server.config.place_requests]

    async def ask(place: int) -> str | None:
        missing = at_ids[place][np.isnan(into[place])].tolist()
        # The list in the answer begins with the token that was sampled: one more, or the last would not be in it.
        asked = [*missing, missing[-1]]
        sampling = {"max_tokens": 1, "temperature": 0.0, "logprobs": len(asked), "logprob_token_ids": asked}
        answer = await _ask(server, ids[: begin + place], sampling)
        content = (answer.choices[0].logprobs or {}).get("content") or [{}]
        told = {item["token_id"]: item["logprob"] for item in content[0].get("top_logprobs") or ()}
        for number, token in enumerate(at_ids[place].tolist()):
            if math.isnan(into[place, number]) and token in told:
                into[place, number] = log_prob(told[token])
        return answer.version

    versions = await asyncio.gather(*(ask(int(place)) for place in places))
    _same_version(server, [version, *versions])


async def _scores_ids(server: ModelServer) -> bool:
    """Whether it has vLLM's newer runner; it is asked once, with two ids."""
    if server.scores_ids is None:
        sampling = {"max_tokens": 1, "temperature": 0.0, "prompt_logprob_token_ids": [[1]]}
        try:
            answer = await _ask(server, [1, 2], sampling)
            server.scores_ids = answer.prompt_token_id_logprobs is not None
        except PermanentFault:
            server.scores_ids = False
    return server.scores_ids


async def _max_model_len(server: ModelServer) -> int | None:
    """Most tokens of a prompt with its answer; None where the server does not say."""
    try:
        served = (await server.get("/v1/models")).get("data") or []
    except PermanentFault:
        return None
    by_name = {entry.get("id"): entry for entry in served}
    entry = by_name.get(server.asked_as, {})  # an adapter has the length of what it stands on
    limit = entry.get("max_model_len") or by_name.get(entry.get("parent"), {}).get("max_model_len")
    return int(limit) if limit else None


def _same_version(server: ModelServer, versions: Sequence[str | None]) -> None:
    if len(set(versions)) > 1:
        raise TransientFault(
            f"{server.config.url}: the weights changed while one response was scored: versions "
            f"{', '.join(sorted({str(version) for version in versions}))}"
        )
