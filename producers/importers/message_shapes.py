"""Messages as tracing tools keep them, whatever API or framework they came from, in OpenAI's chat shape.

Read are: OpenAI chat messages and Responses items, Anthropic content blocks, OpenTelemetry's `parts`, LangChain
messages (serialised with `kwargs`, or with `type` human, ai, tool), each also as JSON within a string.
"""

from __future__ import annotations

import json
from typing import Any

from producers.importers.base import Unreadable
from producers.importers.encoded import decoded, raw_arguments
from producers.importers.json_scan import json_type
from producers.importers.parts import TEXT_TYPES

Message = dict[str, Any]

ROLES = {
    **dict.fromkeys(("user", "human", "HumanMessage", "HumanMessageChunk"), "user"),
    **dict.fromkeys(("assistant", "ai", "AIMessage", "AIMessageChunk", "model"), "assistant"),
    **dict.fromkeys(("tool", "function", "ToolMessage", "FunctionMessage"), "tool"),
    **dict.fromkeys(("system", "SystemMessage"), "system"),
    "developer": "developer",
}
_CALLS = frozenset({"function_call", "custom_tool_call", "tool_call", "tool_use"})
_RESULTS = frozenset({"function_call_output", "custom_tool_call_output", "tool_call_response", "tool_result"})
_THOUGHTS = frozenset({"reasoning", "thinking", "redacted_thinking"})
_MARKS = frozenset(
    {
        "role",
        "messages",
        "message",
        "choices",
        "generations",
        "parts",
        "kwargs",
        "contents",
        "input",
        "output",
        "prompt",
    }
)
"""Fields of which a chat's objects have at least one."""
_TYPES = _CALLS | _RESULTS | _THOUGHTS | ROLES.keys() | {"message", "text"}


def unfolded(value: Any) -> Any:
    """What a string holds where that is a chat; else the value itself: a model also answers in JSON of its own."""
    found = decoded(value)
    return found if _is_chat(found) else value


def _is_chat(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(_is_chat(one) for one in value)
    return isinstance(value, dict) and (bool(value.keys() & _MARKS) or _kind(value) in _TYPES)


def messages_of(value: Any) -> list[Message]:
    """The messages of a request.

    Raises:
        Unreadable: something in it is no message of a shape known.
    """
    value = unfolded(value)
    if isinstance(value, dict):
        inner = next((value[name] for name in ("messages", "input", "prompt", "contents") if value.get(name)), None)
        if inner is not None:
            return _system_of(value) + messages_of(inner)
        return messages_of([value])
    if isinstance(value, str):
        return [{"role": "user", "content": value}] if value else []
    if not isinstance(value, list):
        raise Unreadable(f"the request is a JSON {json_type(value)}, not a list of messages")
    if len(value) == 1 and isinstance(value[0], list):
        return messages_of(value[0])  # LangChain: a batch of one
    found: list[Message] = []
    for one in value:
        for message in messages_in(one):
            if found and message.pop("_item", False) and found[-1]["role"] == "assistant":
                _merge(found[-1], message)
            else:
                message.pop("_item", None)
                found.append(message)
    return found


def messages_in(value: Any) -> list[Message]:
    """The messages that one source message is: results of tools that stand in it are messages of their own. `_item`
    marks a Responses item, which belongs to the assistant message before it; `reasoning` is left in for an answer.

    Raises:
        Unreadable: it is no message of a shape known.
    """
    value = unfolded(value)
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, dict):
        raise Unreadable(f"a message is a JSON {json_type(value)}, not an object")
    kind = _kind(value)
    if isinstance(value.get("kwargs"), dict) and isinstance(value.get("id"), list) and value["id"]:
        return messages_in({"type": value["id"][-1], **value["kwargs"], "_class": value["id"][-1]})
    if isinstance(value.get("data"), dict) and kind in ROLES:
        return messages_in({**value["data"], "type": kind})
    if isinstance(value.get("message"), dict) and "role" not in value:
        return messages_in(value["message"])
    if kind in _RESULTS:
        return [_result(value)]
    if kind in _CALLS:
        return [{"role": "assistant", "content": None, "tool_calls": [_call(value)], "_item": True}]
    if kind in _THOUGHTS:
        return [{"role": "assistant", "content": None, "reasoning": _thought(value), "_item": True}]
    name = value.get("role") or value.get("_class") or kind
    role = ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        raise Unreadable(f"role {name!r} is none of {', '.join(sorted(set(ROLES.values())))}")
    return _message(role, value)


def _message(role: str, value: Message) -> list[Message]:
    body = value.get("parts", value.get("content"))
    blocks = body if isinstance(body, list) else []
    results, kept, calls, thoughts = list[Message](), list[Any](), list[Message](), list[str]()
    for block in blocks:
        kind = _kind(block) if isinstance(block, dict) else None
        if kind in _RESULTS:
            results.append(_result(block))
        elif kind in _CALLS:
            calls.append(_call(block))
        elif kind in _THOUGHTS:
            thoughts.append(_thought(block))
        elif isinstance(block, (dict, str)):
            kept.append(_part(block))
        else:
            raise Unreadable(f"a part of a message is a JSON {json_type(block)}, not an object")
    if not isinstance(body, (str, list, type(None))):
        body = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    message: Message = {"role": role, "content": _joined(kept) if isinstance(body, list) else body}
    calls = _written_calls(value) or calls
    if calls:
        message["tool_calls"] = calls
    if role == "tool":
        if results:
            return results
        message["tool_call_id"] = _text(value, "tool_call_id", "id", "call_id")
        message["content"] = message["content"] if message["content"] is not None else ""
    reasoning = _text(value, "reasoning_content", "reasoning") or "\n".join(filter(None, thoughts))
    if role == "assistant" and reasoning:
        message["reasoning"] = reasoning
    if results and not kept and not calls:
        return results  # a user row that a machine wrote
    return [*results, message]


def _written_calls(value: Message) -> list[Message]:
    extra = value.get("additional_kwargs")
    sources = (value.get("tool_calls"), extra.get("tool_calls") if isinstance(extra, dict) else None)
    calls = next((source for source in sources if source), None)
    if calls is None and isinstance(old := value.get("function_call"), dict):
        calls = [old]
    if calls is None:
        return []
    if not isinstance(calls, list):
        raise Unreadable(f"`tool_calls` is a JSON {json_type(calls)}, not a list")
    return [_call(call) for call in calls]


def _call(call: Any) -> Message:
    call = decoded(call)
    if not isinstance(call, dict):
        raise Unreadable(f"a tool call is a JSON {json_type(call)}, not an object")
    function = call["function"] if isinstance(call.get("function"), dict) else call
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise Unreadable("a tool call has no name")
    given = next((function[key] for key in ("arguments", "args", "input") if function.get(key) is not None), None)
    found: Message = {"type": "function", "function": {"name": name, "arguments": raw_arguments(given)}}
    # Responses items have both an `id` of their own and the `call_id` that the result names.
    call_id = _text(call, "call_id", "id")
    return {"id": call_id, **found} if call_id else found


def _result(block: Message) -> Message:
    content = next((block[key] for key in ("output", "response", "result", "content") if key in block), None)
    if isinstance(content, list):
        content = _joined([_part(part) for part in content])
    if not isinstance(content, (str, list)):
        content = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return {
        "role": "tool",
        "tool_call_id": _text(block, "call_id", "tool_use_id", "tool_call_id", "id"),
        "content": content,
    }


def _part(part: Any) -> Any:
    """A part in OpenAI's shape where it is text; else as it is."""
    if isinstance(part, dict):
        kind = _kind(part)
        for name in ("text", "content", "refusal"):
            if isinstance(part.get(name), str) and (kind in TEXT_TYPES or kind is None):
                return {"type": "text", "text": part[name]}
    return {"type": "text", "text": part} if isinstance(part, str) else part


def _joined(parts: list[Any]) -> Any:
    """Text alone as one string; with pictures or files between, the parts; nothing as None."""
    if not parts:
        return None
    if all(isinstance(part, dict) and part.get("type") == "text" and "text" in part for part in parts):
        return "\n".join(str(part["text"]) for part in parts)
    return parts


def _thought(block: Message) -> str:
    for name in ("thinking", "content", "text", "summary"):
        said = block.get(name)
        if isinstance(said, str):
            return said
        if isinstance(said, list):
            return "\n".join(
                part["text"] for part in said if isinstance(part, dict) and isinstance(part.get("text"), str)
            )
    return ""


def _merge(message: Message, item: Message) -> None:
    if item.get("tool_calls"):
        message["tool_calls"] = [*message.get("tool_calls", []), *item["tool_calls"]]
    if item.get("reasoning"):
        message["reasoning"] = "\n".join(filter(None, (message.get("reasoning"), item["reasoning"])))


def _system_of(request: Message) -> list[Message]:
    said = request.get("system") or request.get("instructions")
    if isinstance(said, list):
        said = _joined([_part(part) for part in said])
    return [{"role": "system", "content": said}] if said and isinstance(said, (str, list)) else []


def _kind(holder: Message) -> str | None:
    kind = holder.get("type")
    return kind if isinstance(kind, str) else None


def _text(holder: Message, *names: str) -> str | None:
    return next((value for name in names if isinstance(value := holder.get(name), str) and value), None)
