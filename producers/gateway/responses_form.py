"""An answer in the words of the Responses API: the response object, its items, and the events of a stream. Pure."""

from __future__ import annotations

from typing import Any

from producers.gateway.blocks import Block, Blocks, Step

_ECHOED = (
    "instructions",
    "max_output_tokens",
    "metadata",
    "previous_response_id",
    "reasoning",
    "store",
    "temperature",
    "text",
    "top_p",
    "truncation",
    "user",
)
"""Fields of the request that the response repeats."""

_PREFIX = {"reasoning": "rs", "text": "msg", "tool": "fc"}

Plain = dict[str, Any]


def response_of(body: Plain, completion: Plain, blocks: Blocks, status: str) -> Plain:
    """The response object; `completion` is the chat.completion, or any of its chunks."""
    name = "resp_" + str(completion.get("id")).removeprefix("chatcmpl-")
    cut = status == "incomplete"
    return {
        "id": name,
        "object": "response",
        "created_at": completion.get("created"),
        "status": status,
        "model": completion.get("model"),
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": [item_of(name, block, "completed") for block in blocks.all] if status != "in_progress" else [],
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools") or [],
        **{field: body.get(field) for field in _ECHOED},
        "usage": None if status == "in_progress" else _usage(blocks),
    }


def status_of(blocks: Blocks) -> str:
    """`completed`, or `incomplete` where the answer was cut at its limit."""
    return "incomplete" if blocks.finish_reason == "length" else "completed"


def item_of(name: str, block: Block, status: str) -> Plain:
    """The output item that a block is; while it is in progress it has no content yet."""
    done = status == "completed"
    item: Plain = {"id": item_id(name, block), "status": status}
    if block.kind == "tool":
        arguments = block.text if done else ""
        return {**item, "type": "function_call", "call_id": block.call_id, "name": block.name, "arguments": arguments}
    content = [_part(block, block.text)] if done else []
    if block.kind == "reasoning":
        return {**item, "type": "reasoning", "summary": [], "content": content}
    return {**item, "type": "message", "role": "assistant", "content": content}


def item_id(name: str, block: Block) -> str:
    """The id of a block's item, within the response `name`."""
    return f"{_PREFIX[block.kind]}_{name.removeprefix('resp_')}_{block.number}"


def events_of(name: str, step: Step) -> list[Plain]:
    """The events that a step makes, without their sequence numbers."""
    block = step.block
    at = {"item_id": item_id(name, block), "output_index": block.number}
    of_item = {"output_index": block.number}
    within = {**at, "content_index": 0}
    if step.verb == "open":
        added = {"type": "response.output_item.added", **of_item, "item": item_of(name, block, "in_progress")}
        if block.kind == "tool":
            return [added]
        return [added, {"type": "response.content_part.added", **within, "part": _part(block, "")}]
    if step.verb == "add":
        if block.kind == "tool":
            return [{"type": "response.function_call_arguments.delta", **at, "delta": step.piece}]
        if block.kind == "reasoning":
            return [{"type": "response.reasoning_text.delta", **within, "delta": step.piece}]
        return [{"type": "response.output_text.delta", **within, "delta": step.piece, "logprobs": []}]
    done = {"type": "response.output_item.done", **of_item, "item": item_of(name, block, "completed")}
    if block.kind == "tool":
        ended = {"type": "response.function_call_arguments.done", **at, "arguments": block.text, "name": block.name}
        return [ended, done]
    if block.kind == "reasoning":
        ended = {"type": "response.reasoning_text.done", **within, "text": block.text}
    else:
        ended = {"type": "response.output_text.done", **within, "text": block.text, "logprobs": []}
    return [ended, {"type": "response.content_part.done", **within, "part": _part(block, block.text)}, done]


def _part(block: Block, text: str) -> Plain:
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": block.logprobs if text else []}


def _usage(blocks: Blocks) -> Plain:
    return {
        "input_tokens": blocks.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": blocks.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": blocks.prompt_tokens + blocks.completion_tokens,
    }
