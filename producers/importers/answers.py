"""What an answer looks like in a later request, and how it ended."""

from __future__ import annotations

from typing import Any

from producers.importers.base import UNKNOWN_POLICY, Unreadable
from producers.importers.content import arguments_of, text_field
from producers.importers.json_scan import json_type
from schemas.events import FinishReason, Response, ToolCall


def assistant_message(response: Response) -> dict[str, Any]:
    """The answer as an OpenAI message of a later request, without its reasoning: no log says whether that was sent."""
    message: dict[str, Any] = {"role": "assistant", "content": response.content}
    if response.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in response.tool_calls
        ]
    return message


def finish_reason_of(stop: Any, response: Response, known: dict[str, FinishReason]) -> FinishReason:
    """How the answer ended: what the log calls `stop` as `known` translates it, else as far as the text shows."""
    said = known.get(stop) if isinstance(stop, str) else None
    if said in ("length", "aborted", "error"):
        return said
    if response.tool_calls:
        return "tool_calls"
    return "stop" if said == "stop" or (response.content or "").strip() else "aborted"


def call_of(call_id: Any, name: Any, arguments: Any) -> ToolCall:
    """One tool call.

    Raises:
        Unreadable: it has no name, or an id that is no text.
    """
    if not isinstance(name, str) or not name:
        raise Unreadable("a tool call has no name")
    if call_id is not None and not isinstance(call_id, str):
        raise Unreadable(f"the id of tool call {name} is a JSON {json_type(call_id)}, not a string")
    return ToolCall(id=call_id, name=name, arguments=arguments_of(arguments))


def joined(texts: list[str]) -> str | None:
    """Several pieces of one answer as one text; None where there is no piece."""
    return "\n".join(texts) if texts else None


def policy_of(model: Any) -> str:
    """The policy's name from what the log calls the model."""
    return model if isinstance(model, str) and model else UNKNOWN_POLICY


def when(row: dict[str, Any]) -> str | None:
    """The row's `timestamp` where it is text."""
    return text_field(row, "timestamp")
