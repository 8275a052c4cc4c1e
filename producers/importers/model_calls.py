"""A model call and a tool's run out of the raw input and output that a tracing tool keeps of them."""

from __future__ import annotations

import json
from typing import Any

from producers.importers.base import Unreadable, check_storable
from producers.importers.calls import ModelCall, ToolRun, check_call
from producers.importers.choices import answers_of, failed_answer
from producers.importers.encoded import decoded, raw_arguments
from producers.importers.message_shapes import Message, messages_of, unfolded
from producers.importers.parts import shown_text
from producers.importers.spans import tools_of


def model_call(
    *,
    key: str,
    order: tuple[Any, ...],
    line: int,
    sent: Any,
    said: Any,
    failed: bool,
    policy: str,
    tools: Any = None,
    system: Any = None,
    finish: Any = None,
    sampling: dict[str, Any] | None = None,
    times: tuple[str | None, str | None] = (None, None),
) -> ModelCall:
    """The call.

    Args:
        sent: the request: messages, or an object with them (and `tools`).
        said: the response; None where there was none, which a call that `failed` may do.
        system: instructions that stand apart from `sent`.
        finish: why it ended, where that stands apart from `said`.

    Raises:
        Unreadable: request or response are missing or of no shape known.
    """
    if sent is None:
        raise Unreadable("what the model was sent is not in the file")
    if said is None and not failed:
        raise Unreadable("what the model answered is not in the file")
    try:
        request, response = unfolded(sent), unfolded(said)
        messages = _with_system(messages_of(request), system, response)
        answers = [failed_answer()] if said is None else answers_of(response, finish)
        for message in messages:
            message.pop("reasoning", None)  # whether an API was sent it again, no log says
        check_call(messages, answers)
        found = tools_of(decoded(tools)) or _tools_in(request) or _tools_in(response)
        check_storable([messages, found, [answer.message for answer in answers], sampling])
    except RecursionError as err:
        raise Unreadable("it is nested too deeply") from err
    return ModelCall(
        key=key,
        order=order,
        line=line,
        messages=messages,
        answers=answers,
        policy=policy,
        tools=found,
        sampling=sampling or {},
        started_at=times[0],
        ended_at=times[1],
    )


def tool_run(
    *,
    key: str,
    order: tuple[Any, ...],
    line: int,
    name: str,
    given: Any,
    result: Any,
    call_id: str | None,
    ended_at: str | None,
) -> ToolRun:
    """The run of a tool. The text "null" is a result; null is none, it never came.

    Raises:
        Unreadable: it is nested too deeply.
    """
    try:
        arguments = None if given is None else raw_arguments(given)
        text, named = _result(result)
        check_storable([arguments, text])
    except RecursionError as err:
        raise Unreadable("it is nested too deeply") from err
    return ToolRun(
        key=key,
        order=order,
        line=line,
        name=name,
        arguments=arguments,
        call_id=call_id or named,
        result=text,
        ended_at=ended_at,
    )


def _result(value: Any) -> tuple[str | None, str | None]:
    """What a tool gave, as text, and the id of its call where the result names it (LangChain's tool message)."""
    if value is None:
        return None, None
    inner = decoded(value)
    if isinstance(inner, dict):
        kwargs = inner.get("kwargs")
        message: Message = kwargs if isinstance(kwargs, dict) else inner
        named, content = message.get("tool_call_id"), message.get("content")
        if isinstance(named, str) and named and isinstance(content, (str, list)) and content:
            return shown_text(content), named
    if isinstance(value, str):
        return _unquoted(value), None
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")), None


def _unquoted(text: str) -> str:
    """Without the quotes of an exporter that wrote a string as JSON."""
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            inner = json.loads(text, strict=False)
        except ValueError:
            return text
        return inner if isinstance(inner, str) else text
    return text


def _with_system(messages: list[Message], system: Any, response: Any) -> list[Message]:
    """With the instructions in front that stand apart from the messages: in a field, or echoed in the response."""
    said = decoded(system)
    if said is None and isinstance(response, dict) and response.get("object") == "response":
        said = response.get("instructions")
    if not said or any(message.get("role") in ("system", "developer") for message in messages):
        return messages
    if isinstance(said, list):
        said = messages_of([{"role": "system", "content": said}])[0]["content"]
    return [{"role": "system", "content": said}, *messages] if isinstance(said, (str, list)) else messages


def _tools_in(body: Any) -> list[dict[str, Any]]:
    return tools_of(body.get("tools")) if isinstance(body, dict) else []
