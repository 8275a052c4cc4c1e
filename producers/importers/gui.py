"""Steps of an agent that sees a screen: what OpenCUA and OSWorld logs share."""

from __future__ import annotations

from typing import Any

from producers.importers.parts import image_part, shown_text
from schemas.events import Response, ToolCall

Message = dict[str, Any]


def screen_message(image: str | None, text: str | None) -> Message:
    """A user message that shows a screen: the picture by its name, as the log holds it, and what a text says of it."""
    parts: list[Message] = [] if image is None else [image_part(image)]
    if text:
        parts.append({"type": "text", "text": text})
    return {"role": "user", "content": parts}


def screen_text(image: str | None, text: str | None) -> str:
    """The same screen as the text of a `gui_change`."""
    return shown_text(screen_message(image, text)["content"])


def action_call(action: str) -> ToolCall:
    """A GUI action as a tool call; the arguments are the code or JSON as the log has it."""
    return ToolCall(id=None, name="action", arguments=action)


def answer_message(response: Response) -> Message:
    """The response as a message of a later request."""
    calls = [
        {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in response.tool_calls
    ]
    message: Message = {"role": "assistant", "content": response.content}
    return message | {"tool_calls": calls} if calls else message
