"""Keys that tell whether two spellings of a conversation are the same one."""

from __future__ import annotations

import json
from typing import Any

from producers.importers.parts import shown_text
from schemas.digests import digest_of
from schemas.text import sanitise

Message = dict[str, Any]


def prefix_key(messages: list[Message]) -> str:
    """Of a conversation. System messages do not count: tracing tools keep them with some calls and not with others."""
    said = [_plain(message) for message in messages if message.get("role") not in ("system", "developer")]
    return digest_of(sanitise(said)[0])


def same_answer_key(message: Message) -> str:
    """Of one answer alone."""
    return digest_of(sanitise(_plain(message))[0])


def call_key(name: str, arguments: str | None) -> str:
    """Of a tool call by what it asks for, however its arguments are spaced."""
    return digest_of(sanitise([name, _parsed(arguments or "{}")])[0])


def last_answer(messages: list[Message]) -> int:
    """Place of the last assistant message; -1 where there is none."""
    return max((i for i, message in enumerate(messages) if message.get("role") == "assistant"), default=-1)


def _plain(message: Message) -> list[Any]:
    content = message.get("content")
    calls = [
        [call.get("id"), call["function"]["name"], _parsed(call["function"]["arguments"])]
        for call in message.get("tool_calls", [])
    ]
    text = "" if content is None else shown_text(content).strip()
    return [message.get("role"), text, calls, message.get("tool_call_id")]


def _parsed(arguments: str) -> Any:
    """The arguments as JSON printed with sorted keys; as text where they are none."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments.strip()
