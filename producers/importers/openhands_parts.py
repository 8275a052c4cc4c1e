"""What single events of the OpenHands SDK say: answers, observations, the model's name."""

from __future__ import annotations

import json
from typing import Any

from producers.importers.answers import call_of, joined
from producers.importers.base import Unreadable
from producers.importers.content import content_text, image_name, text_field
from producers.importers.openai_messages import tool_calls_of
from schemas.events import NextStateKind, Response, ToolCall

Event = dict[str, Any]


def response_of(events: list[Event]) -> Response:
    """The answer that action events with one `llm_response_id`, or one message event, are.

    Text and reasoning stand in the first of several; one that repeats them adds nothing.

    Raises:
        Unreadable: an event does not have its shape.
    """
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for event in events:
        message = event.get("llm_message")
        said = message if isinstance(message, dict) else event
        text = content_text(said.get("content") if said is message else event.get("thought"), "`thought`")
        thought = content_text(said.get("reasoning_content"), "`reasoning_content`")
        if text and text not in texts:
            texts.append(text)
        if thought and thought not in thoughts:
            thoughts.append(thought)
        calls += tool_calls_of(said) if said is message else [_call(event)]
    return Response(content=joined(texts), reasoning=joined(thoughts), tool_calls=calls)


def observed_text(event: Event) -> str:
    """What an observation, an error or a rejection says to the policy.

    Raises:
        Unreadable: it says nothing that can be read.
    """
    observation = event.get("observation")
    if not isinstance(observation, dict):
        said = event.get("error") if event.get("kind") == "AgentErrorEvent" else event.get("rejection_reason")
        if not isinstance(said, str):
            raise Unreadable("it has neither `observation` nor `error` nor `rejection_reason`")
        return said
    texts = [
        text
        for name in ("content", "output", "error", "result")
        if observation.get(name) and (text := content_text(observation[name], f"`{name}`"))
    ][:1]
    if isinstance(shown := observation.get("screenshot_data"), str) and shown:
        texts.append(image_name({"data": shown}))
    return "\n".join(texts)


def observed_kind(event: Event) -> NextStateKind:
    """Terminal, browser, or any other tool."""
    observation = event.get("observation")
    kind = str(observation.get("kind")) if isinstance(observation, dict) else ""
    if "Terminal" in kind or "Bash" in kind:
        return "terminal_output"
    return "gui_change" if "Browser" in kind else "tool_result"


def exit_code_of(event: Event) -> int | None:
    """The exit code that OpenHands noted; -1, its mark for a command that has not ended, is none."""
    observation = event.get("observation")
    if not isinstance(observation, dict):
        return None
    metadata = observation.get("metadata")
    for code in (observation.get("exit_code"), metadata.get("exit_code") if isinstance(metadata, dict) else None):
        if type(code) is int and 0 <= code < 1 << 31:
            return code
    return None


def tools_of(tools: Any) -> list[dict[str, Any]]:
    """The tools offered, as far as they stand in the shape of a request."""
    listed = tools if isinstance(tools, list) else []
    return [tool for tool in listed if isinstance(tool, dict) and isinstance(tool.get("function"), dict)]


def model_of(event: Event) -> str | None:
    """The model's name as a state update tells it."""
    if event.get("kind") != "ConversationStateUpdateEvent" or not isinstance(event.get("value"), dict):
        return None
    value: dict[str, Any] = event["value"]
    usage = _path(value, "stats", "usage_to_metrics") or _path(value, "usage_to_metrics")
    for name in ("agent", "default"):
        model = _path(usage, name, "model_name")
        if isinstance(model, str) and model:
            return model
    model = _path(value, "agent", "llm", "model")
    return model if isinstance(model, str) and model else None


def _call(event: Event) -> ToolCall:
    call = event.get("tool_call")
    if isinstance(call, dict):
        function = call.get("function")
        made = function if isinstance(function, dict) else call
        return call_of(call.get("id"), made.get("name"), made.get("arguments", ""))
    action = event.get("action")
    given = {key: value for key, value in action.items() if key != "kind"} if isinstance(action, dict) else {}
    return call_of(text_field(event, "tool_call_id"), event.get("tool_name"), json.dumps(given, ensure_ascii=False))


def _path(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value
