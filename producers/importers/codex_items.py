"""What one item of a Codex rollout says: the parts of an answer, what a tool gave, what a person typed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from producers.importers.answers import call_of, joined
from producers.importers.base import Unreadable
from producers.importers.content import content_text, spoken, text_field
from producers.importers.json_scan import json_type
from schemas.events import Response, ToolCall

Item = dict[str, Any]

_TAGS = (
    "environment_context",
    "user_instructions",
    "permissions instructions",
    "collaboration_mode",
    "personality_spec",
    "app-context",
    "model_switch",
    "skill",
    "skills_instructions",
    "subagent_notification",
    "user_shell_command",
    "turn_aborted",
    "INSTRUCTIONS",
)
_NOTES = ("# AGENTS.md instructions for",)
"""How texts begin that no person typed."""
_FROM_EDITOR, _TYPED = "# Context from my IDE setup:", "## My request for Codex:\n"


@dataclass
class Pieces:
    """The items of one answer so far; `line` is the first one's."""

    line: int
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    ended_at: str | None = None
    fault: str | None = None
    """Why the answer cannot be told whole."""

    def add(self, item: Item) -> None:
        """Take one more item in.

        Raises:
            Unreadable: it does not have its shape.
        """
        kind = item.get("type", "message")
        if kind == "message":
            self.texts.append(content_text(item.get("content"), "`content`"))
        elif kind == "reasoning":
            self.thoughts += thoughts_of(item)
        else:
            self.calls.append(tool_call(item))

    def makes_again(self, item: Item) -> bool:
        """Whether the item calls with an id that this answer has used: then it belongs to the next answer."""
        call_id = item.get("call_id")
        return is_call(item) and isinstance(call_id, str) and any(call.id == call_id for call in self.calls)

    def response(self) -> Response:
        """The answer that the items make."""
        return Response(content=joined(self.texts), reasoning=joined(self.thoughts), tool_calls=self.calls)


def is_call(item: Item) -> bool:
    """Whether the item is a tool call of any kind."""
    return isinstance(item.get("type"), str) and item["type"].endswith("_call")


def is_output(item: Item) -> bool:
    """Whether the item is a tool's result of any kind."""
    return isinstance(item.get("type"), str) and item["type"].endswith("_output")


def is_answer(item: Item) -> bool:
    """Whether the item is a part of an answer."""
    return is_call(item) or item.get("type") == "reasoning" or is_message(item, "assistant")


def is_message(item: Item, *roles: str) -> bool:
    """Whether the item is a message in one of `roles`; some writers leave its type away."""
    return item.get("type", "message") == "message" and item.get("role") in roles


def thoughts_of(item: Item) -> list[str]:
    """The readable thoughts of a reasoning item: in full where they are there, else their summary."""
    for name in ("content", "summary"):
        if item.get(name):
            return [content_text(item[name], f"`{name}`")]
    return []


def tool_call(item: Item) -> ToolCall:
    """The call that an item makes. A tool of the API's own (web search) has no name but its type.

    `arguments` are the raw string; a call logged without any has the empty string.

    Raises:
        Unreadable: it does not have its shape.
    """
    kind: str = item["type"]
    name = item.get("name") or (None if kind in ("function_call", "custom_tool_call") else kind.removesuffix("_call"))
    given = next((item[key] for key in ("arguments", "input", "action") if item.get(key) is not None), "")
    return call_of(item.get("call_id") or None, name, given)


def output_text(item: Item) -> str:
    """The text of a tool's result: a string, a list of parts, or an object around one of them.

    Raises:
        Unreadable: it has none of these shapes.
    """
    output = item.get("output")
    if isinstance(output, dict):
        inner = output.get("content", output.get("output"))
        return content_text(inner, "`output`") if isinstance(inner, (str, list)) else json.dumps(output)
    if output is None and item.get("tools") is not None:
        return json.dumps(item["tools"], ensure_ascii=False)
    if output is None:
        raise Unreadable("the result has no `output`")
    return content_text(output, "`output`")


def typed(text: str) -> str:
    """What a person typed of a text in role user: without machine blocks, and without what the editor put before."""
    text = spoken(text, _TAGS)
    if text.startswith(_FROM_EDITOR):
        text = text.partition(_TYPED)[2].strip()
    return "" if text.startswith(_NOTES) else text


def messages_of(items: Any) -> list[dict[str, Any]]:
    """The messages that a list of items is: what a compaction put in the place of the history.

    Raises:
        Unreadable: an item does not have its shape.
    """
    if not isinstance(items, list):
        raise Unreadable(f"`replacement_history` is a JSON {json_type(items)}, not a list")
    messages: list[dict[str, Any]] = []
    for item in items:
        if not isinstance(item, dict):
            raise Unreadable(f"`replacement_history` has a JSON {json_type(item)}")
        call_id = text_field(item, "call_id")
        if is_message(item, "user", "assistant", "developer", "system"):
            role = "system" if item["role"] == "developer" else item["role"]
            messages.append({"role": role, "content": content_text(item.get("content"), "`content`")})
        elif is_call(item):
            call = tool_call(item)
            function = {"name": call.name, "arguments": call.arguments}
            made = {"id": call.id, "type": "function", "function": function}
            messages.append({"role": "assistant", "content": None, "tool_calls": [made]})
        elif is_output(item) and call_id is not None:
            messages.append({"role": "tool", "tool_call_id": call_id, "content": output_text(item)})
    return messages
