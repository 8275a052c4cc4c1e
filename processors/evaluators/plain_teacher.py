"""A teacher that reads what the policy read, without a hint: it scores the recorded answer, whoever gave it.

A turn without its engine's tokens is scored by those that the policy's tokenizer makes of its text, as the learner will
make them again: all ids that were scored are kept, and the learner compares.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from processors.evaluators.inputs import Turn
from processors.evaluators.kept_scores import Asking
from processors.evaluators.score_reading import TeacherFailed
from processors.evaluators.teacher import TeacherScores, mean_gain, recorded_scores, scores_of
from processors.evaluators.wanted import Wanted
from schemas.arrays import pack_ids, unpack_ids
from schemas.chat import answer_of, prompt_of
from schemas.chat_tokens import ChatTokens, NotTokenised
from schemas.digests import digest_of, known_as_text, sha256_hex


async def score_answer(asking: Asking, turn: Turn, chat: ChatTokens | None, wanted: Wanted) -> TeacherScores:
    """Score `turn`'s answer after its own prompt; `hinted_prompt_ids` then are prompt and answer.

    Raises:
        TeacherFailed: the turn has no tokens, or the server's answer does not allow it.
        TransientFault: no answer now.
    """
    # A tokenizer that is not loaded yet takes seconds.
    prompt, response = await asyncio.to_thread(_tokens, turn, chat)
    ids = [len(prompt), sha256_hex(pack_ids(prompt + response))]
    question = digest_of(["teacher", asking.teacher.model, turn.turn_id, None, wanted.top_k, ids, *wanted.more])
    if asking.replayed and (found := await asking.transactions.run(recorded_scores, {turn.turn_id: question})):
        return found[turn.turn_id]
    scored = await scores_of(asking, turn, prompt, response, wanted, question)
    return scored if known_as_text(turn) else replace(scored, mean_gain=mean_gain(scored.logprobs, turn))


def _tokens(turn: Turn, chat: ChatTokens | None) -> tuple[list[int], list[int]]:
    if not known_as_text(turn):
        return unpack_ids(turn.prompt_ids).tolist(), unpack_ids(turn.response_ids).tolist()
    if chat is None:
        raise TeacherFailed("no_tokenizer: the turn is known as text alone; set HINDSTREAM_MODEL to the policy's model")
    answer, whole = answer_of(turn.response), turn.finish_reason != "length"
    try:
        made = chat.turn(prompt_of(turn.messages), turn.tools, answer, whole=whole)
    except NotTokenised as err:
        raise TeacherFailed(f"{err.reason}: {err}") from err
    except (OSError, ValueError) as err:
        raise TeacherFailed(f"no_tokenizer: {err}") from err
    return made.prompt_ids.tolist(), made.response_ids.tolist()
