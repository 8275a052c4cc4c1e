"""The prompt with a hint in it: exactly what the turn saw, the hint aside."""

from __future__ import annotations

from typing import Any, Literal

from processors.evaluators.inputs import Turn
from processors.evaluators.prompt_scores import length_fault
from processors.evaluators.score_reading import TeacherFailed
from processors.evaluators.server import ModelServer, PermanentFault

_SHAPES_THE_PROMPT = (
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "reasoning_effort",
)
"""Request fields that change how a chat becomes tokens."""

Place = Literal["last_user", "system", "tool_result"]
"""Where the teacher sees the hint: at the end of the last user message, of the system message, or of the last result of
a tool."""


async def render(server: ModelServer, turn: Turn, messages: list[dict[str, Any]]) -> list[int]:
    """Token ids of `messages` as `server` renders them, with the tools and the template's arguments of `turn`.

    Raises:
        TeacherFailed: it does not render chats.
        ServerFault: no answer.
    """
    body = {"model": server.asked_as, "messages": messages, "max_tokens": 1, **_shape(turn)}
    if turn.tools:  # "none" only concerns the answer's parsing; the tools are in the prompt all the same
        body["tool_choice"] = "none"
    plain = await server.post("/v1/chat/completions/render", body)
    token_ids = plain.get("token_ids")
    if not isinstance(token_ids, list):
        raise TeacherFailed("no_render: the server does not render chats to token ids")
    return [int(token) for token in token_ids]


async def too_long(server: ModelServer, turn: Turn, messages: list[dict[str, Any]], response: int) -> str | None:
    """Why `server`, which refuses to render `messages`, cannot take them with a response of so many tokens: both
    lengths. None where it is not for their length.

    Raises:
        TransientFault: no answer.
    """
    try:
        counted = await server.post("/tokenize", {"model": server.asked_as, "messages": messages, **_shape(turn)})
    except PermanentFault:
        return None
    return length_fault(server, counted.get("count") or 0, response, counted.get("max_model_len"))


def _shape(turn: Turn) -> dict[str, Any]:
    shape = {name: turn.sampling[name] for name in _SHAPES_THE_PROMPT if turn.sampling.get(name) is not None}
    return {**shape, "tools": turn.tools} if turn.tools else shape


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
