"""What single events of an old OpenHands history say: answers of the agent, observations, verdicts."""

from __future__ import annotations

import json
from typing import Any

from producers.importers.answers import call_of, finish_reason_of
from producers.importers.base import UNKNOWN_POLICY, Unreadable
from producers.importers.content import content_text, image_name, text_field
from producers.importers.json_scan import json_type
from producers.importers.openai_messages import tool_calls_of
from schemas.events import FinishReason, NextStateKind, Response

Event = dict[str, Any]

_NO_ANSWERS = ("system", "condensation", "condensation_request", "change_agent_state", "recall", "null")
"""Actions that OpenHands takes in the agent's name."""
_NO_STATES = ("null", "agent_state_changed", "recall", "condensation", "loop_recovery")
"""Observations that tell the policy nothing about its action."""
_STOPS: dict[str, FinishReason] = {"stop": "stop", "tool_calls": "tool_calls", "length": "length"}


def is_answer(event: Event) -> bool:
    """Whether the event is an action that the policy chose."""
    action = event.get("action")
    return isinstance(action, str) and event.get("source") == "agent" and action not in _NO_ANSWERS


def response_id(event: Event) -> str | None:
    """The id of the response of which the action is a part."""
    return text_field(_model_response(event), "id")


def answered(event: Event) -> Response:
    """What the policy said when it chose this action: its own message where the event kept it, with all calls that it
    made at once, else what can be told from the action.

    Raises:
        Unreadable: neither has its shape.
    """
    message = _choice(event).get("message")
    if isinstance(message, dict):
        content = message.get("content")
        return Response(
            content=None if content is None else content_text(content, "`content`"),
            reasoning=content_text(message.get("reasoning_content"), "`reasoning_content`") or None,
            tool_calls=tool_calls_of(message),
        )
    args = event.get("args")
    if not isinstance(args, dict):
        raise Unreadable(f"`args` is a JSON {json_type(args)}, not an object")
    if event["action"] == "message":
        return Response(content=content_text(args.get("content"), "`content`"))
    given = {key: value for key, value in args.items() if key != "thought"}
    metadata = event.get("tool_call_metadata")
    made = metadata if isinstance(metadata, dict) else {}
    name = text_field(made, "function_name") or event["action"]
    call = call_of(call_id_of(event), name, json.dumps(given, ensure_ascii=False))
    return Response(content=content_text(args.get("thought"), "`thought`") or None, tool_calls=[call])


def call_id_of(event: Event) -> str | None:
    """The id of the tool call that an action carries out, or that an observation is about."""
    metadata = event.get("tool_call_metadata")
    return text_field(metadata, "tool_call_id") if isinstance(metadata, dict) else None


def finish_of(event: Event, response: Response) -> FinishReason:
    """How the answer of this action ended."""
    return finish_reason_of(_choice(event).get("finish_reason"), response, _STOPS)


def policy_of_event(event: Event) -> str | None:
    """The model that answered, where the event kept its name."""
    return text_field(_model_response(event), "model")


def first_policy(events: list[Event], around: dict[str, Any]) -> str:
    """The model that a history names first: of answers before that, and where none is named after."""
    metadata = around.get("metadata")
    config = metadata.get("llm_config") if isinstance(metadata, dict) else None
    named = text_field(config, "model") if isinstance(config, dict) else None
    found = (policy_of_event(event) for event in events if is_answer(event))
    return named or next((model for model in found if model is not None), UNKNOWN_POLICY)


def task_of(event: Event) -> str:
    """What another agent is told to do, by an action `delegate`."""
    args = event.get("args")
    inputs = args.get("inputs") if isinstance(args, dict) else None
    task = inputs.get("task") if isinstance(inputs, dict) else None
    return task if isinstance(task, str) else json.dumps(inputs, ensure_ascii=False)


def typed_text(event: Event) -> str:
    """What a person said, with the names of the images shown.

    Raises:
        Unreadable: it is no text.
    """
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    text = content_text(args.get("content", event.get("message")), "`content`")
    images = args.get("image_urls")
    shown = [image_name(image) for image in images] if isinstance(images, list) else []
    return "\n".join(part for part in (text, *shown) if part)


def observed_kind(event: Event) -> NextStateKind | None:
    """What kind of next state an observation is; None where it is none."""
    kind = event["observation"]
    if kind in _NO_STATES:
        return None
    if kind in ("run", "run_ipython"):
        return "terminal_output"
    return "gui_change" if kind in ("browse", "browse_interactive") else "tool_result"


def observed_text(event: Event) -> str:
    """What the policy reads of an observation, with the name of its screenshot.

    Raises:
        Unreadable: `content` is no text.
    """
    text = content_text(event.get("content", event.get("message")), "`content`")
    extras = event.get("extras")
    shown = extras.get("screenshot") if isinstance(extras, dict) else None
    return "\n".join([text, image_name(shown)]) if isinstance(shown, str) and shown else text


def exit_code_of(event: Event) -> int | None:
    """The exit code that OpenHands noted; -1, its mark for a command that has not ended, is none."""
    extras = event.get("extras")
    extras = extras if isinstance(extras, dict) else {}
    metadata = extras.get("metadata")
    for code in (metadata.get("exit_code") if isinstance(metadata, dict) else None, extras.get("exit_code")):
        if type(code) is int and 0 <= code < 1 << 31:
            return code
    return None


def verdict_of(around: dict[str, Any]) -> float | None:
    """Whether the run's tests passed, as the evaluation noted beside the history."""
    for holder in (around.get("test_result"), around):
        report = holder.get("report") if isinstance(holder, dict) else None
        resolved = report.get("resolved") if isinstance(report, dict) else None
        if isinstance(resolved, bool):
            return float(resolved)
    return None


def _model_response(event: Event) -> dict[str, Any]:
    metadata = event.get("tool_call_metadata")
    response = metadata.get("model_response") if isinstance(metadata, dict) else None
    return response if isinstance(response, dict) else {}


def _choice(event: Event) -> dict[str, Any]:
    choices = _model_response(event).get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}
