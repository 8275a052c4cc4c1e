"""What a model answered, out of the response as a tracing tool keeps it: one answer for each choice."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from producers.importers.base import Unreadable
from producers.importers.json_scan import json_type
from producers.importers.message_shapes import ROLES, Message, messages_in, messages_of, unfolded
from producers.importers.openai_messages import finish_reason_of, tool_calls_of
from producers.importers.parts import shown_text
from schemas.events import FinishReason, Response

_FINISH: dict[str, FinishReason] = {
    **dict.fromkeys(("stop", "end_turn", "stop_sequence", "completed", "eos"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "incomplete", "max_output_tokens"), "length"),
    **dict.fromkeys(("tool_calls", "tool_call", "tool_use", "function_call"), "tool_calls"),
    **dict.fromkeys(("content_filter", "cancelled", "aborted"), "aborted"),
    **dict.fromkeys(("error", "failed"), "error"),
}
_TEXTS = frozenset({"output_text", "completion", "answer", "text", "output", "response", "result", "content"})
_BLOCKS = frozenset({"text", "tool_use", "thinking"})
_ITEMS = frozenset({"message", "function_call", "reasoning"})


@dataclass(frozen=True)
class Answer:
    """One choice: the response, the same as a message (without reasoning), and why it ended."""

    response: Response
    message: Message
    finish_reason: FinishReason


def failed_answer() -> Answer:
    """The answer of a call that failed: nothing."""
    return Answer(Response(), {"role": "assistant", "content": None}, "error")


def answers_of(value: Any, finish: Any = None) -> list[Answer]:
    """The answers that a response holds, at least one.

    Args:
        finish: why it ended where the log says it apart, or a list with one for each choice.

    Raises:
        Unreadable: there is none of a shape known.
    """
    choices = _choices(unfolded(value))
    finishes = finish if isinstance(finish, list) else [finish] * len(choices)
    finishes = [*finishes, *[None] * (len(choices) - len(finishes))]
    return [_answer(message, said or other) for (message, said), other in zip(choices, finishes, strict=False)]


def _choices(value: Any) -> list[tuple[Message, Any]]:
    """Assistant messages, each with the reason that stands beside it."""
    if isinstance(value, str):
        return [({"role": "assistant", "content": value}, None)]
    if isinstance(value, list):
        return _listed(value)
    if not isinstance(value, dict):
        raise Unreadable(f"the answer is a JSON {json_type(value)}")
    choices = value.get("choices")
    if isinstance(choices, list) and choices:
        return [_choice(choice) for choice in choices]
    generations = value.get("generations")
    if isinstance(generations, list) and generations:
        inner = generations[0] if isinstance(generations[0], list) else generations
        return [_choice(one) for one in inner] if inner else _choices(None)
    for name in ("output", "messages"):
        if isinstance(items := unfolded(value.get(name)), list) and items:
            cut = value.get("status") if value.get("status") != "completed" else None
            return [(message, cut or said) for message, said in _listed(items)]
    if "role" in value or "kwargs" in value or isinstance(value.get("message"), dict) or _kind(value) in ROLES:
        return [_choice(value)]
    if isinstance(value.get("content"), list):
        return [_choice({"role": "assistant", **value})]
    if _kind(value) in _BLOCKS | _ITEMS:
        return _listed([value])
    name = next(iter(value)) if len(value) == 1 else ""
    if name in _TEXTS and isinstance(value[name], (str, dict)):
        return _choices(value[name])
    # An answer in JSON of the model's own, parsed by whoever logged it: printed again, so its spacing is ours.
    return [({"role": "assistant", "content": json.dumps(value, ensure_ascii=False, separators=(",", ":"))}, None)]


def _listed(values: list[Any]) -> list[tuple[Message, Any]]:
    """Several finished messages are choices. Else it is one answer in pieces (Responses items, content blocks), or a
    conversation, whose last answer it is."""
    if len(values) == 1 and isinstance(values[0], list):
        return _listed(values[0])
    if not values:
        raise Unreadable("the answer is an empty list")
    if all(isinstance(one, str) for one in values):
        return [({"role": "assistant", "content": "".join(values)}, None)]
    if all(isinstance(one, dict) and "finish_reason" in one for one in values):
        return [_choice(one) for one in values]
    if all(isinstance(one, dict) and "role" not in one and _kind(one) in _BLOCKS for one in values):
        return [_choice({"role": "assistant", "content": values})]
    found = [message for message in messages_of(values) if message["role"] == "assistant"]
    if not found:
        raise Unreadable("there is no assistant message in the answer")
    pieces = any(isinstance(one, dict) and _kind(one) in _ITEMS for one in values)
    return [(_as_one(found) if pieces else found[-1], None)]


def _kind(block: Message) -> str | None:
    kind = block.get("type")
    return kind if isinstance(kind, str) else None


def _as_one(messages: list[Message]) -> Message:
    texts = [shown_text(message["content"]) for message in messages if message["content"] is not None]
    whole: Message = {"role": "assistant", "content": "\n".join(texts) if texts else None}
    if calls := [call for message in messages for call in message.get("tool_calls", [])]:
        whole["tool_calls"] = calls
    if thoughts := [message["reasoning"] for message in messages if message.get("reasoning")]:
        whole["reasoning"] = "\n".join(thoughts)
    return whole


def _choice(choice: Any) -> tuple[Message, Any]:
    if not isinstance(choice, dict):
        raise Unreadable(f"a choice is a JSON {json_type(choice)}, not an object")
    if isinstance(choice.get("text"), str) and "message" not in choice and "role" not in choice:
        message: Message = {"role": "assistant", "content": choice["text"]}
    else:
        message = messages_in(choice)[-1]
        if message["role"] != "assistant":
            raise Unreadable(f"the answer is a message of role {message['role']!r}, not of the assistant")
    return {key: value for key, value in message.items() if key != "_item"}, _finish_in(choice)


def _finish_in(choice: Message) -> Any:
    """Why a choice ended, from where the frameworks keep it."""
    inner = choice.get("message")
    kwargs = (inner if isinstance(inner, dict) else choice).get("kwargs")
    kwargs = kwargs if isinstance(kwargs, dict) else {}
    holders = [choice, choice.get("generation_info"), kwargs.get("response_metadata"), choice.get("response_metadata")]
    names = ("finish_reason", "stop_reason", "done_reason")
    return next((h[name] for h in holders if isinstance(h, dict) for name in names if h.get(name)), None)


def _answer(message: Message, finish: Any) -> Answer:
    reasoning = message.get("reasoning")
    plain = {key: value for key, value in message.items() if key != "reasoning"}
    content = plain.get("content")
    response = Response(
        content=None if content is None else shown_text(content),
        reasoning=reasoning if isinstance(reasoning, str) and reasoning else None,
        tool_calls=tool_calls_of(plain),
    )
    known = _FINISH.get(finish.lower()) if isinstance(finish, str) else None
    if known == "stop" and response.tool_calls:
        known = "tool_calls"  # some APIs say `stop` of every answer that was not cut off
    return Answer(response, plain, known or finish_reason_of(response))
