"""Whether two servers cut text into the same tokens: a teacher with another tokenizer scores nonsense.

Three things are compared: what becomes of a few texts, what becomes of the policy's own special tokens (where its files
are known), and the sizes of the vocabularies (where a server says its own).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from processors.evaluators.server import ModelServer, PermanentFault
from schemas.chat_tokens import ChatTokens

_TEXTS = (
    "The quick brown fox can't jump 1,234.50 metres; ÄÖÜ ß ñ 你好 🙂\t\n  x = {'a': [1, 2]}",
    "<|im_start|>user\nHi<|im_end|>\n<s>[INST] </s><|endoftext|><|eot_id|><tool_call>",
    " leading and trailing space ",
)
"""Words, numbers, scripts, white space, code, and the special tokens of several families."""
_PADDING = 1024
"""Ids. Models of one family round their vocabulary up differently, for speed (one family to 151,936 and to 152,064);
ids between the tokenizer's size and that are never sampled. A difference this large is another tokenizer."""
_NO_ID = 2**31 - 1
_SIZE = re.compile(r"[Vv]ocabulary size: (\d+)")


class TokenizerMismatch(RuntimeError):
    """The teacher cannot score the policy's tokens: which servers, which text, both sizes, what to do."""


async def check_same_tokenizer(policy: ModelServer, teacher: ModelServer, chat: ChatTokens | None = None) -> None:
    """Do nothing where both tokenize alike. `chat`: the policy's own files, for its special tokens.

    Raises:
        TokenizerMismatch: they do not.
        ServerFault: one did not answer.
    """
    if (policy.config.url, policy.model) == (teacher.config.url, teacher.model):
        return
    ours, theirs = await _vocabulary(policy), await _vocabulary(teacher)
    sizes = f"its vocabulary has {_said(theirs)} ids, the policy's {_said(ours)}"
    who = f"the policy {policy.model} at {policy.config.url}"
    for text in await _texts(chat):
        _compare(text, await _tokens(policy, text), await _tokens(teacher, text), who, teacher, sizes)
    if ours is not None and theirs is not None and abs(ours - theirs) >= _PADDING:
        raise TokenizerMismatch(
            f"the teacher {teacher.model} at {teacher.config.url} has a vocabulary of {theirs} ids, and {who} one of "
            f"{ours}. {_WHAT_TO_DO}"
        )


async def check_tokenizer_of(chat: ChatTokens, teacher: ModelServer) -> None:
    """Do nothing where the teacher tokenizes as the policy's own files do.

    Raises:
        TokenizerMismatch: it does not.
        ServerFault: it did not answer.
        OSError, ValueError: the policy's directory holds no tokenizer.
    """
    ours, theirs = await asyncio.to_thread(lambda: chat.size), await _vocabulary(teacher)
    sizes = f"its vocabulary has {_said(theirs)} ids, the policy's tokenizer {ours}"
    for text in await _texts(chat):
        _compare(text, chat.ids(text), await _tokens(teacher, text), "the policy's model", teacher, sizes)
    if theirs is not None and (theirs < ours or theirs - ours >= 2 * _PADDING):
        raise TokenizerMismatch(
            f"the teacher {teacher.model} at {teacher.config.url} has a vocabulary of {theirs} ids, and the policy's "
            f"tokenizer {ours}. {_WHAT_TO_DO}"
        )


_WHAT_TO_DO = (
    "A teacher must have the policy's tokenizer: set HINDSTREAM_TEACHER__URL to such a server, or HINDSTREAM_MODEL to "
    "the policy's own directory"
)


def _compare(text: str, ours: Sequence[int], theirs: Sequence[int], who: str, teacher: ModelServer, sizes: str) -> None:
    if list(ours) != list(theirs):
        raise TokenizerMismatch(
            f"the teacher {teacher.model} at {teacher.config.url} does not tokenize as {who} does: {text[:20]!r}... "
            f"becomes {len(theirs)} tokens, not the same {len(ours)}; {sizes}. {_WHAT_TO_DO}"
        )


async def _texts(chat: ChatTokens | None) -> tuple[str, ...]:
    # A tokenizer that is not loaded yet takes seconds.
    special = await asyncio.to_thread(lambda: chat.special_tokens) if chat else ()
    return (*_TEXTS, "".join(special)) if special else _TEXTS


async def _vocabulary(server: ModelServer) -> int | None:
    """How many ids the model has, None where the server does not say. vLLM says it where it refuses an id that is too
    high; a server that would rather answer costs one token."""
    sampling = {"max_tokens": 1, "temperature": 0.0, "logprobs": 1, "logprob_token_ids": [_NO_ID]}
    body = {"model": server.model, "token_ids": [1], "sampling_params": sampling}
    try:
        await server.post("/inference/v1/generate", body)
    except PermanentFault as fault:
        found = _SIZE.search(str(fault))
        return int(found.group(1)) if found else None
    return None


def _said(size: int | None) -> str:
    return "an unknown number of" if size is None else str(size)


async def _tokens(server: ModelServer, text: str) -> list[int]:
    plain = await server.post("/tokenize", {"model": server.model, "prompt": text, "add_special_tokens": False})
    tokens: list[int] = plain["tokens"]
    return tokens
