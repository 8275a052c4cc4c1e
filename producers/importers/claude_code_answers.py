"""What the rows of one Claude Code answer say together."""

from __future__ import annotations

from typing import Any

from producers.importers.answers import call_of, joined
from producers.importers.base import Unreadable
from producers.importers.content import content_text
from producers.importers.json_scan import json_type
from schemas.events import Response, ToolCall


def message_of(row: dict[str, Any]) -> dict[str, Any]:
    """The row's `message`.

    Raises:
        Unreadable: it is no object.
    """
    message = row.get("message")
    if not isinstance(message, dict):
        raise Unreadable(f"`message` is a JSON {json_type(message)}, not an object")
    return message


def response_of(rows: list[dict[str, Any]]) -> Response:
    """The answer that several rows make together, each block once however often it was written.

    Raises:
        Unreadable: a block is none that an answer has.
    """
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    seen: list[Any] = []
    for row in rows:
        content = message_of(row).get("content")
        if not isinstance(content, (str, list)):
            raise Unreadable(f"`content` is a JSON {json_type(content)}, not text or a list of blocks")
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if block in seen:
                continue
            seen.append(block)
            kind = block.get("type") if isinstance(block, dict) else None
            if kind == "text":
                texts.append(content_text([block], "`content`"))
            elif kind == "thinking":
                thoughts.append(content_text(block.get("thinking"), "`thinking`"))
            elif kind in ("tool_use", "server_tool_use"):
                calls.append(call_of(block.get("id"), block.get("name"), block.get("input", {})))
            elif kind != "redacted_thinking" and not str(kind).endswith("_tool_result"):
                raise Unreadable(f"the answer has a block of type {kind!r}")
    return Response(content=joined(texts), reasoning=joined(thoughts), tool_calls=calls)
