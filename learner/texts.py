"""Tokens and pairs of samples whose recipe needs no more than text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.arrays import unpack_floats, unpack_ids
from schemas.chat import answer_of, prompt_of
from schemas.chat_tokens import ChatTokens, NotTokenised
from schemas.digests import known_as_text, siblings_key
from schemas.pairs import best_with_worst
from schemas.recipes import Needs

_NONE = np.zeros(0, np.int32)


@dataclass(frozen=True, eq=False)
class Tokens:
    """What a sample is trained on. `logprobs` None: nobody knows or reads a sampler's. `fault`: a drop reason and its
    words, where there is nothing to train; the ids are then empty."""

    prompt_ids: NDArray[np.int32]
    response_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32] | None
    correction_ids: NDArray[np.int32] | None = None
    fault: tuple[str, str] | None = None


def tokens_of(row: Any, needs: Needs, chat: ChatTokens | None) -> Tokens:
    """The engine's ids and log-probs as they are; of a turn that has none, where the recipe takes such, the ids that
    `chat` makes of its text.

    Raises:
        ValueError: text is to be tokenised and `chat` is None.
    """
    if not needs.text:
        logprobs = unpack_floats(row.response_logprobs)
        return Tokens(unpack_ids(row.prompt_ids), unpack_ids(row.response_ids), logprobs)
    try:
        return _of_text(row, needs, chat)
    except NotTokenised as err:
        return Tokens(_NONE, _NONE, None, fault=(err.reason, str(err)))


def pairs_of(rows: Sequence[Any]) -> dict[str, tuple[str, bool]]:
    """By sample the pair that it is in, and whether it is the better of the two. An answer that a person corrected is
    the worse of a pair by itself."""
    siblings: dict[str, list[Any]] = {}
    found: dict[str, tuple[str, bool]] = {}
    for row in rows:
        if row.correction is not None:
            found[row.sample_id] = (row.sample_id, False)
        elif row.reward is not None:
            siblings.setdefault(siblings_key(row), []).append(row)
    for same in siblings.values():
        for better, worse in best_with_worst(same, attrgetter("reward"), attrgetter("turn_id")):
            found[better.sample_id] = (better.sample_id, True)
            found[worse.sample_id] = (better.sample_id, False)
    return found


def _of_text(row: Any, needs: Needs, chat: ChatTokens | None) -> Tokens:
    if chat is None:
        raise ValueError(f"sample {row.sample_id} needs a tokenizer: give the policy's ChatTokens")
    messages = prompt_of(row.messages)
    logprobs = None
    if known_as_text(row):
        turn = chat.turn(messages, row.tools, answer_of(row.response), whole=row.finish_reason != "length")
        prompt_ids, response_ids = turn.prompt_ids, turn.response_ids
    else:
        prompt_ids, response_ids = unpack_ids(row.prompt_ids), unpack_ids(row.response_ids)
        recorded = unpack_floats(row.response_logprobs)
        if len(recorded) == len(response_ids) and np.isfinite(recorded).all():
            logprobs = recorded
    correction_ids = None
    if needs.pairs and row.correction is not None:
        correction = {"role": "assistant", "content": row.correction}
        correction_ids = chat.turn(messages, row.tools, correction).response_ids
    if needs.prompt_scores and row.teacher_logprobs is not None:
        scored = unpack_ids(row.hinted_prompt_ids)
        if not np.array_equal(scored, np.concatenate([prompt_ids, response_ids])):
            raise NotTokenised("hint_failed", f"the teacher scored {len(scored)} tokens that are not the policy's")
    return Tokens(prompt_ids, response_ids, logprobs, correction_ids)
