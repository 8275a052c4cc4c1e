"""Reading what a server says of places: every value a log-prob of the id that stands there, or the answer is refused.

Shapes: T response tokens, J named ids a token, N scored ids a token.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

_ROUNDING = 1e-4
"""Above 0 by less than this a log-prob is a rounded 0."""
_IMPOSSIBLE = -9999.0
"""What vLLM writes for -inf."""


class TeacherFailed(RuntimeError):
    """The teacher cannot score this turn and never will: the reason, beginning with one word that can be counted."""


def looked_up(wanted: NDArray[np.int32], ids: NDArray[np.int32], scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scores float32 [T, J] of `wanted` [T, J] where they are among `ids` [T, N]; NaN elsewhere."""
    same = wanted[:, :, None] == ids[:, None, :]
    found = np.take_along_axis(scores, same.argmax(axis=2), axis=1)
    return np.where(same.any(axis=2), found, np.float32(np.nan))


def read_at_ids(encoded: str, at_ids: NDArray[np.int32]) -> NDArray[np.float32]:
    """The scores of exactly `at_ids`, out of numpy's own format in base64.

    Raises:
        TeacherFailed: they are of another number of places or ids, or not all numbers.
    """
    try:
        scores = np.load(io.BytesIO(base64.b64decode(encoded)), allow_pickle=False).astype(np.float32)
    except (ValueError, OSError, EOFError) as err:
        raise TeacherFailed(f"student_ids: the server's scores of named ids cannot be read ({err})") from err
    if scores.shape != at_ids.shape:
        raise TeacherFailed(f"length: scores {scores.shape} of named ids {at_ids.shape}")
    if np.isnan(scores).any() or (scores > _ROUNDING).any():
        raise TeacherFailed("not_a_number: a score of a named id is no log-prob")
    return np.where(scores <= _IMPOSSIBLE, np.float32(-np.inf), scores)


def read_prompt_logprobs(
    entries: Sequence[Any], start: int, response_ids: list[int], top_k: int
) -> tuple[list[float], list[list[int]], list[list[float]]]:
    """Log-prob of each response token, and ids and log-probs of the `top_k` likeliest tokens in its place, by rank.

    `entries[i]` (or its JSON as `msgspec.Raw`) maps token ids (as text) to log-prob and rank in place i; the token that
    stands there is always among them, beside the top k where it is not one of them. `start` is the first response
    token's place: its log-prob is the one given the whole prompt. A token that the teacher holds for impossible has
    -inf: it teaches nothing by itself, and the others stay.

    Raises:
        TeacherFailed: a place is missing, holds another token, has not `top_k` ranks, or a value is no log-prob.
    """
    if len(entries) != start + len(response_ids):
        raise TeacherFailed(f"length: {len(entries)} places for {start} prompt and {len(response_ids)} response ids")
    logprobs, topk_ids, topk_logprobs = [], [], []
    for place, token in enumerate(response_ids):
        found = entries[start + place]
        entry: dict[str, Any] = (msgspec.json.decode(found) if isinstance(found, msgspec.Raw) else found) or {}
        chosen = entry.get(str(token))
        if chosen is None:
            raise TeacherFailed(f"ids: response token {place} is {token}, which the answer does not score")
        ranked = sorted((item["rank"], int(key), item["logprob"]) for key, item in entry.items())
        top = [item for item in ranked if item[0] is not None and item[0] <= top_k]
        if [rank for rank, _, _ in top] != list(range(1, top_k + 1)):
            raise TeacherFailed(f"topk: response token {place} has ranks {[r for r, _, _ in ranked]}, not 1 to {top_k}")
        values = [log_prob(value) for value in (chosen["logprob"], *(value for _, _, value in top))]
        if any(math.isnan(value) for value in values):
            raise TeacherFailed(f"not_a_number: response token {place} has log-probs {chosen['logprob']}, {top}")
        logprobs.append(values[0])
        topk_ids.append([token_id for _, token_id, _ in top])
        topk_logprobs.append(values[1:])
    return logprobs, topk_ids, topk_logprobs


def log_prob(value: object) -> float:
    """NaN for what is no number. vLLM writes -inf as a very low number, since JSON has none: taken as it stands, that
    one token's advantage would be thousands of nats."""
    if not isinstance(value, (int, float)) or value > _ROUNDING:
        return math.nan
    return -math.inf if value <= _IMPOSSIBLE else float(value)
