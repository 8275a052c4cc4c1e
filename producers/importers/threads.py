"""Keys that tell whether two spellings of a conversation are the same one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from producers.importers.parts import shown_text

Message = dict[str, Any]
Key = tuple[Any, ...]

_CACHED = 1 << 12
"""Argument strings kept: each request repeats those of all before it."""


def message_key(message: Message) -> Key:
    """Of one message: role, text without surrounding space, calls with their arguments as JSON, the call it answers."""
    content = message.get("content")
    calls = tuple(
        (call.get("id"), call["function"]["name"], _parsed(call["function"]["arguments"]))
        for call in message.get("tool_calls", [])
    )
    text = "" if content is None else shown_text(content).strip()
    return message.get("role"), text, calls, message.get("tool_call_id")


def conversation_key(keys: Iterable[Key]) -> Key:
    """Of messages by their keys. System messages do not count: tracing tools keep them with some calls only."""
    return tuple(key for key in keys if key[0] not in ("system", "developer"))


def call_key(name: str, arguments: str | None) -> Key:
    """Of a tool call by what it asks for, however its arguments are spaced."""
    return name, _parsed(arguments or "{}")


def last_answer(messages: list[Message]) -> int:
    """Place of the last assistant message; -1 where there is none."""
    return max((i for i, message in enumerate(messages) if message.get("role") == "assistant"), default=-1)


@lru_cache(_CACHED)
def _parsed(arguments: str) -> str:
    """The arguments as JSON printed with sorted keys; as text where they are none."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments.strip()
