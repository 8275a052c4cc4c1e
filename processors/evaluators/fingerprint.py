"""Whether two servers cut text into the same tokens: a teacher with another tokenizer scores nonsense."""

from __future__ import annotations

from processors.evaluators.server import ModelServer
from schemas.chat_tokens import ChatTokens

_TEXTS = (
    "The quick brown fox can't jump 1,234.50 metres; ÄÖÜ ß ñ 你好 🙂\t\n  x = {'a': [1, 2]}",
    "<|im_start|>user\nHi<|im_end|>\n<s>[INST] </s><|endoftext|><|eot_id|><tool_call>",
    " leading and trailing space ",
)
"""Words, numbers, scripts, white space, code, and the special tokens of several families."""


class TokenizerMismatch(RuntimeError):
    """The teacher cannot score the policy's tokens: which servers, which text, what to do."""


async def check_same_tokenizer(policy: ModelServer, teacher: ModelServer) -> None:
    """Do nothing where both tokenize alike.

    Raises:
        TokenizerMismatch: they do not.
        ServerFault: one did not answer.
    """
    if (policy.config.url, policy.model) == (teacher.config.url, teacher.model):
        return
    for text in _TEXTS:
        ours, theirs = await _tokens(policy, text), await _tokens(teacher, text)
        if ours != theirs:
            raise TokenizerMismatch(
                f"the teacher {teacher.model} at {teacher.config.url} does not tokenize as the policy {policy.model} "
                f"at {policy.config.url} does: {text[:20]!r}... becomes {len(theirs)} tokens, not the same "
                f"{len(ours)}. A teacher must have the policy's tokenizer: set HINDSTREAM_TEACHER__URL to such a server"
            )


async def check_tokenizer_of(chat: ChatTokens, teacher: ModelServer) -> None:
    """Do nothing where the teacher tokenizes as the policy's own files do.

    Raises:
        TokenizerMismatch: it does not.
        ServerFault: it did not answer.
        OSError, ValueError: the policy's directory holds no tokenizer.
    """
    for text in _TEXTS:
        ours, theirs = chat.ids(text), await _tokens(teacher, text)
        if ours != theirs:
            raise TokenizerMismatch(
                f"the teacher {teacher.model} at {teacher.config.url} does not tokenize as the policy's model does: "
                f"{text[:20]!r}... becomes {len(theirs)} tokens, not the same {len(ours)}. A teacher must have the "
                "policy's tokenizer: set HINDSTREAM_TEACHER__URL to such a server, or HINDSTREAM_MODEL to its family"
            )


async def _tokens(server: ModelServer, text: str) -> list[int]:
    plain = await server.post("/tokenize", {"model": server.model, "prompt": text, "add_special_tokens": False})
    tokens: list[int] = plain["tokens"]
    return tokens
