"""A request of Anthropic's Messages API as a chat completion request. Pure.

Fields that both have under one name, and fields that neither knows, pass as they are.
"""

from __future__ import annotations

import json
from typing import Any

from producers.gateway.refusal import BadRequest

_OWN = frozenset(
    {
        "messages",
        "system",
        "tools",
        "tool_choice",
        "stop_sequences",
        "metadata",
        "thinking",
        "output_config",
        "cache_control",
        "container",
        "context_management",
        "mcp_servers",
        "service_tier",
        "inference_geo",
    }
)
"""Fields that are translated below, or mean nothing to a server of one model."""

Plain = dict[str, Any]


def to_chat(body: Plain) -> Plain:
    """The chat completion request.

    Raises:
        BadRequest: a field is not what the API says, or a kind of block or tool has no counterpart.
    """
    if not isinstance(body.get("max_tokens"), int):
        raise BadRequest("max_tokens: a number is needed", "max_tokens")
    chat = {name: value for name, value in body.items() if name not in _OWN}
    chat["messages"] = _system(body.get("system")) + _messages(body.get("messages"))
    if body.get("stop_sequences"):
        chat["stop"] = body["stop_sequences"]
    if body.get("tools"):
        chat["tools"] = [_tool(tool, place) for place, tool in enumerate(_list(body["tools"], "tools"))]
    chat |= _tool_choice(body.get("tool_choice"))
    metadata = body.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("user_id"), str):
        chat["user"] = metadata["user_id"]
    if body.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    return chat


def _system(system: Any) -> list[Plain]:
    if system is None:
        return []
    if isinstance(system, str):
        return [{"role": "system", "content": system}]
    return [{"role": "system", "content": "\n".join(_text(block, "system") for block in _list(system, "system"))}]


def _messages(messages: Any) -> list[Plain]:
    found: list[Plain] = []
    for place, message in enumerate(_list(messages, "messages")):
        where = f"messages[{place}]"
        role, content = message.get("role"), message.get("content")
        if role not in ("user", "assistant", "system"):
            raise BadRequest(f"{where}.role: user or assistant, not {role!r}", f"{where}.role")
        if isinstance(content, str):
            found.append({"role": role, "content": content})
            continue
        blocks = _list(content, f"{where}.content")
        found += _assistant(blocks, where) if role == "assistant" else _user(role, blocks, where)
    return found


def _assistant(blocks: list[Plain], where: str) -> list[Plain]:
    texts, reasoning, calls = [], [], []
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            texts.append(_text(block, where))
        elif kind == "thinking":
            reasoning.append(str(block.get("thinking") or ""))
        elif kind == "tool_use":
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
            function = {"name": block.get("name") or "", "arguments": arguments}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind != "redacted_thinking":
            raise BadRequest(f"{where}: no {kind!r} blocks from the assistant here", where)
    message: Plain = {"role": "assistant", "content": "".join(texts) or (None if calls else "")}
    if reasoning:
        message["reasoning"] = "".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return [message]


def _user(role: str, blocks: list[Plain], where: str) -> list[Plain]:
    """Tool results first, as chat completions want them right after the calls; then the rest as one message."""
    results, parts = [], []
    for block in blocks:
        if block.get("type") == "tool_result":
            results.append(_result(block, where))
        else:
            parts.append(_part(block, where))
    if not parts:
        return results
    if all(part["type"] == "text" for part in parts):
        return [*results, {"role": role, "content": "\n".join(part["text"] for part in parts)}]
    return [*results, {"role": role, "content": parts}]


def _result(block: Plain, where: str) -> Plain:
    content = block.get("content")
    if isinstance(content, list):
        parts = [_part(inner, where) for inner in _list(content, where)]
        texts = [part["text"] for part in parts if part["type"] == "text"]
        content = "\n".join(texts) if len(texts) == len(parts) else parts
    return {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content or ""}


def _part(block: Plain, where: str) -> Plain:
    kind, source = block.get("type"), block.get("source")
    if kind == "text":
        return {"type": "text", "text": _text(block, where)}
    if kind == "image" and isinstance(source, dict):
        url = source.get("url")
        if source.get("type") == "base64":
            url = f"data:{source.get('media_type')};base64,{source.get('data')}"
        return {"type": "image_url", "image_url": {"url": url}}
    if kind == "document" and isinstance(source, dict) and source.get("type") == "text":
        return {"type": "text", "text": str(source.get("data") or "")}
    raise BadRequest(f"{where}: no {kind!r} blocks here", where)


def _tool(tool: Plain, place: int) -> Plain:
    if tool.get("type") not in (None, "custom"):
        raise BadRequest(f"tools[{place}]: {tool['type']!r} runs at Anthropic, not here", f"tools[{place}]")
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema")}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _tool_choice(choice: Any) -> Plain:
    if not isinstance(choice, dict):
        return {}
    kind = choice.get("type")
    chat: Plain = {"tool_choice": {"any": "required", "auto": "auto", "none": "none"}.get(str(kind))}
    if kind == "tool":
        chat["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    if chat["tool_choice"] is None:
        raise BadRequest(f"tool_choice: auto, any, tool or none, not {kind!r}", "tool_choice")
    if choice.get("disable_parallel_tool_use"):
        chat["parallel_tool_calls"] = False
    return chat


def _list(value: Any, where: str) -> list[Plain]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise BadRequest(f"{where}: a list of objects is needed", where)
    return value


def _text(block: Plain, where: str) -> str:
    text = block.get("text")
    if not isinstance(text, str):
        raise BadRequest(f"{where}: a text block has a text", where)
    return text
