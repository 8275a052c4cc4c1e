"""A request of OpenAI's Responses API as a chat completion request. Pure.

Fields that both have under one name, and fields that neither knows, pass as they are.
"""

from __future__ import annotations

from typing import Any

from producers.gateway.refusal import BadRequest

_OWN = frozenset(
    {
        "input",
        "instructions",
        "tools",
        "tool_choice",
        "max_output_tokens",
        "text",
        "reasoning",
        "include",
        "previous_response_id",
        "store",
        "background",
        "truncation",
        "conversation",
        "prompt",
        "max_tool_calls",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
    }
)
"""Fields that are translated below, or mean nothing to a server of one model."""

_NOT_HERE = ("background", "conversation", "prompt")
"""Fields that ask for what only OpenAI's own service keeps."""

_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "input_image": "image_url"}

Plain = dict[str, Any]


def to_chat(body: Plain, before: list[Plain]) -> tuple[Plain, list[Plain]]:
    """The chat completion request, and its conversation without the instructions, for the next request to refer to;
    `before` is what `previous_response_id` refers to.

    Raises:
        BadRequest: a field is not what the API says, or has no counterpart.
    """
    for field in _NOT_HERE:
        if body.get(field):
            raise BadRequest(f"{field}: not supported here; send the conversation as input", field)
    chat = {name: value for name, value in body.items() if name not in _OWN}
    conversation = [*before, *_input(body.get("input"))]
    instructions = body.get("instructions")
    system = [{"role": "system", "content": instructions}] if isinstance(instructions, str) and instructions else []
    chat["messages"] = [*system, *conversation]
    if body.get("tools"):
        chat["tools"] = [_tool(tool, place) for place, tool in enumerate(_list(body["tools"], "tools"))]
    if body.get("tool_choice") is not None:
        chat["tool_choice"] = _tool_choice(body["tool_choice"])
    if body.get("max_output_tokens") is not None:
        chat["max_completion_tokens"] = body["max_output_tokens"]
    form = body["text"].get("format") if isinstance(body.get("text"), dict) else None
    form = form if isinstance(form, dict) else {}
    if form.get("type") == "json_schema":
        chat["response_format"] = {
            "type": "json_schema",
            "json_schema": {name: value for name, value in form.items() if name != "type"},
        }
    elif form.get("type") == "json_object":
        chat["response_format"] = {"type": "json_object"}
    if isinstance(body.get("reasoning"), dict) and body["reasoning"].get("effort"):
        chat["reasoning_effort"] = body["reasoning"]["effort"]
    include = body.get("include")
    if isinstance(include, list) and "message.output_text.logprobs" in include:
        chat["logprobs"] = True
    else:
        chat.pop("top_logprobs", None)  # asks for nothing without `include`; a chat completion would refuse it
    if body.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    return chat, conversation


def _input(given: Any) -> list[Plain]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[Plain] = []
    for place, item in enumerate(_list(given, "input")):
        where, kind = f"input[{place}]", item.get("type", "message")
        if kind == "message":
            _append(messages, _message(item, where))
        elif kind == "reasoning":
            texts = [str(part.get("text") or "") for part in _list(item.get("content") or [], where)]
            _append(messages, {"role": "assistant", "content": None, "reasoning": "".join(texts)})
        elif kind == "function_call":
            function = {"name": item.get("name") or "", "arguments": item.get("arguments") or ""}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            _append(messages, {"role": "assistant", "content": None, "tool_calls": [call]})
        elif kind == "function_call_output":
            output = item.get("output")
            content = output if isinstance(output, str) else _content(output, where)
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        else:
            raise BadRequest(f"{where}: no {kind!r} items here", where)
    return messages


def _append(messages: list[Plain], message: Plain) -> None:
    """Items of one answer (reasoning, text, calls) are one message of the assistant."""
    last = messages[-1] if messages else None
    if message["role"] != "assistant" or last is None or last["role"] != "assistant":
        messages.append(message)
        return
    said = [text for text in (last.get("content"), message.get("content")) if text]
    reasons = [text for text in (last.get("reasoning"), message.get("reasoning")) if text]
    merged = {**last, "content": "".join(said) or None}
    if reasons:
        merged["reasoning"] = "".join(reasons)
    if message.get("tool_calls"):
        merged["tool_calls"] = [*(last.get("tool_calls") or []), *message["tool_calls"]]
    messages[-1] = merged


def _message(item: Plain, where: str) -> Plain:
    role = {"developer": "system"}.get(str(item.get("role")), item.get("role"))
    content = item.get("content")
    if role == "assistant" and isinstance(content, list):
        # A refusal is what the assistant said, as any text.
        content = "".join(str(part.get("text") or part.get("refusal") or "") for part in _list(content, where))
    return {"role": role, "content": content if isinstance(content, str) else _content(content, where)}


def _content(content: Any, where: str) -> str | list[Plain]:
    parts: list[Plain] = []
    for part in _list(content, f"{where}.content"):
        kind = _PARTS.get(str(part.get("type")))
        if kind == "text":
            parts.append({"type": "text", "text": str(part.get("text") or "")})
        elif kind == "image_url" and part.get("image_url"):
            parts.append({"type": "image_url", "image_url": {"url": part["image_url"]}})
        else:
            raise BadRequest(f"{where}.content: no {part.get('type')!r} parts here", f"{where}.content")
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _tool(tool: Plain, place: int) -> Plain:
    if tool.get("type") != "function":
        raise BadRequest(f"tools[{place}]: {tool.get('type')!r} runs at OpenAI, not here", f"tools[{place}]")
    function = {name: value for name, value in tool.items() if name in ("name", "description", "parameters", "strict")}
    return {"type": "function", "function": function}


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if isinstance(choice, str):
        return choice
    raise BadRequest("tool_choice: none, auto, required or a function is needed", "tool_choice")


def _list(value: Any, where: str) -> list[Plain]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise BadRequest(f"{where}: a list of objects is needed", where)
    return value
