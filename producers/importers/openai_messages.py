"""Chat messages in OpenAI's shape, as several logs keep them: what an assistant message says."""

from __future__ import annotations

from typing import Any

from producers.importers.base import Unreadable, text_of
from producers.importers.json_scan import json_type
from schemas.events import FinishReason, Response, ToolCall


def response_of(message: dict[str, Any]) -> Response:
    """The response that an assistant message is.

    Raises:
        Unreadable: content or a tool call does not have its shape.
    """
    content = message.get("content")
    return Response(
        content=None if content is None else text_of(content, "`content`"),
        tool_calls=tool_calls_of(message),
    )


def tool_calls_of(message: dict[str, Any]) -> list[ToolCall]:
    """The tool calls of an assistant message, arguments as the raw strings that they are.

    Raises:
        Unreadable: a call does not have its shape.
    """
    calls = message.get("tool_calls")
    if calls is None:
        return []
    if not isinstance(calls, list):
        raise Unreadable(f"`tool_calls` is a JSON {json_type(calls)}, not a list")
    return [_tool_call(call) for call in calls]


def finish_reason_of(response: Response) -> FinishReason:
    """How the answer ended, as far as the text shows: a log of messages says neither `length` nor `error`.

    An answer with neither text nor a call was cut off: `aborted`.
    """
    if response.tool_calls:
        return "tool_calls"
    return "stop" if (response.content or "").strip() else "aborted"


def _tool_call(call: Any) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise Unreadable("a tool call has no `function` object")
    call_id, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        raise Unreadable("a tool call has no function name")
    if not isinstance(arguments, str):
        raise Unreadable(f"the arguments of tool call {name} are a JSON {json_type(arguments)}, not a string")
    if call_id is not None and not isinstance(call_id, str):
        raise Unreadable(f"the id of tool call {name} is a JSON {json_type(call_id)}, not a string")
    return ToolCall(id=call_id, name=name, arguments=arguments)
