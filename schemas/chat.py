"""Turns as messages of the kind that chat templates and other trainers read: what was sent, and what was answered."""

from __future__ import annotations

from typing import Any

import msgspec

Message = dict[str, Any]


def prompt_of(messages: list[Message]) -> list[Message]:
    """The request's messages as sent, with the arguments of tool calls as objects."""
    return [_with_objects(message) for message in messages]


def answer_of(response: dict[str, Any]) -> Message:
    """A turn's response (`turns.response`) as an assistant message."""
    message: Message = {"role": "assistant", "content": response.get("content")}
    if response.get("reasoning"):
        message["reasoning_content"] = response["reasoning"]
    if calls := response.get("tool_calls"):
        message["tool_calls"] = [
            {"type": "function", "id": call["id"], "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in calls
        ]
    elif message["content"] is None:
        message["content"] = ""
    return _with_objects(message)


def _with_objects(message: Message) -> Message:
    """Chat templates write the arguments as JSON themselves, so text would be escaped a second time. What is no JSON
    object stays the text that it is."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return message | {"tool_calls": [_call(call) for call in calls]}


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = msgspec.json.decode(function["arguments"])
    except (msgspec.MsgspecError, RecursionError):
        return call
    if not isinstance(arguments, dict):
        return call
    return call | {"function": function | {"arguments": arguments}}
