"""Anthropic's `/v1/messages`, answered through chat completions, so that its turns have the engine's tokens too."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from aiohttp import web

from producers.gateway import sse
from producers.gateway.blocks import Block, Blocks, Step
from producers.gateway.bodies import body_of
from producers.gateway.chat_api import read_chat
from producers.gateway.desk import Streamed, TurnFailed
from producers.gateway.keys import DESK, UPSTREAM
from producers.gateway.messages_request import to_chat
from producers.gateway.refusal import BadRequest
from producers.gateway.replying import send_stream
from producers.gateway.requests import ChatRequest, chat_request
from producers.gateway.upstream import UpstreamFailed

_STOP = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

Plain = dict[str, Any]


async def messages(request: web.Request) -> web.StreamResponse:
    """The handler."""
    body = await body_of(request)
    chat = read_chat(request, to_chat(body))
    desk = request.app[DESK]
    if not body.get("stream"):
        reply = await desk.whole(request.app[UPSTREAM], chat)
        message = whole_message(reply.completion)
        desk.receipts.keep(reply.receipt, message["id"])
        return web.json_response(message, headers=reply.receipt.headers())
    streamed = Streamed()
    return await send_stream(request, chat, streamed, _events(request, chat, streamed))


async def count_tokens(request: web.Request) -> web.StreamResponse:
    """`/v1/messages/count_tokens`: by the policy's own template and tokenizer."""
    body = await body_of(request)
    chat = chat_request(request, to_chat({"max_tokens": 1, **body}))
    try:
        ids = await request.app[UPSTREAM].prompt_ids(chat.body)
    except UpstreamFailed as err:
        raise TurnFailed(err, None) from err
    if ids is None:
        raise BadRequest("the model server does not say token ids, so they cannot be counted", status=404)
    return web.json_response({"input_tokens": len(ids)})


def whole_message(completion: Plain) -> Plain:
    """The message that a whole chat.completion is."""
    blocks = Blocks()
    blocks.take(completion)
    usage = {"input_tokens": blocks.prompt_tokens, "output_tokens": blocks.completion_tokens}
    message = _message(_id(completion), completion.get("model"), usage)
    message["content"] = [_whole(block) for block in blocks.all]
    return message | _stopped(blocks)


async def _events(request: web.Request, chat: ChatRequest, streamed: Streamed) -> AsyncGenerator[bytes, None]:
    blocks, name = Blocks(), None
    desk = request.app[DESK]
    async with aclosing(desk.stream(request.app[UPSTREAM], chat, streamed)) as chunks:
        async for chunk in chunks:
            if chunk.get("error"):
                error = {"type": "api_error", "message": chunk["error"].get("message")}
                yield _event({"type": "error", "error": error})
                continue
            if name is None:
                name = _id(chunk)
                usage = {"input_tokens": len(streamed.gathered.prompt_ids), "output_tokens": 0}
                yield _event({"type": "message_start", "message": _message(name, chunk.get("model"), usage)})
            for step in blocks.take(chunk):
                yield _step(step)
    if name is not None and streamed.receipt is not None:
        desk.receipts.keep(streamed.receipt, name)
    if streamed.gathered.failed or not streamed.gathered.finished:
        return
    for step in blocks.end():
        yield _step(step)
    used = {"input_tokens": blocks.prompt_tokens, "output_tokens": blocks.completion_tokens}
    yield _event({"type": "message_delta", "delta": _stopped(blocks), "usage": used})
    yield _event({"type": "message_stop"})


def _step(step: Step) -> bytes:
    block = step.block
    if step.verb == "open":
        return _event({"type": "content_block_start", "index": block.number, "content_block": _empty(block)})
    if step.verb == "close":
        return _event({"type": "content_block_stop", "index": block.number})
    delta = {
        "reasoning": {"type": "thinking_delta", "thinking": step.piece},
        "text": {"type": "text_delta", "text": step.piece},
        "tool": {"type": "input_json_delta", "partial_json": step.piece},
    }[block.kind]
    return _event({"type": "content_block_delta", "index": block.number, "delta": delta})


def _empty(block: Block) -> Plain:
    if block.kind == "tool":
        return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": {}}
    return {"type": "text", "text": ""} if block.kind == "text" else _thinking("")


def _whole(block: Block) -> Plain:
    if block.kind == "tool":
        return {**_empty(block), "input": _input(block.text)}
    return {"type": "text", "text": block.text} if block.kind == "text" else _thinking(block.text)


def _thinking(text: str) -> Plain:
    return {"type": "thinking", "thinking": text, "signature": ""}


def _input(arguments: str) -> Any:
    """The arguments as an object. What a model wrote amiss is kept where the caller can see it: his tool then says what
    is missing, and the raw string is on the log."""
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {"arguments": arguments}


def _message(name: str, model: Any, usage: Plain) -> Plain:
    return {
        "id": name,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def _stopped(blocks: Blocks) -> Plain:
    if blocks.finish_reason == "stop" and blocks.stop_string is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": blocks.stop_string}
    called = any(block.kind == "tool" for block in blocks.all)
    reason = (
        "tool_use" if called and blocks.finish_reason == "stop" else _STOP.get(str(blocks.finish_reason), "end_turn")
    )
    return {"stop_reason": reason, "stop_sequence": None}


def _id(completion: Plain) -> str:
    return "msg_" + str(completion.get("id")).removeprefix("chatcmpl-")


def _event(data: Plain) -> bytes:
    return sse.event(data, data["type"])
