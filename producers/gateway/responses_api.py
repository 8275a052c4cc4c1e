"""OpenAI's `/v1/responses`, answered through chat completions, so that its turns have the engine's tokens too."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from aiohttp import web

from producers.gateway import sse
from producers.gateway.access.callers import caller_of, public
from producers.gateway.blocks import Blocks
from producers.gateway.bodies import body_of
from producers.gateway.chat_api import read_chat
from producers.gateway.conversations import Kept
from producers.gateway.desk import Streamed
from producers.gateway.keys import CONVERSATIONS, DESK, UPSTREAM
from producers.gateway.refusal import BadRequest
from producers.gateway.replying import send_stream, told
from producers.gateway.requests import ChatRequest
from producers.gateway.responses_form import events_of, response_of, status_of
from producers.gateway.responses_request import to_chat

Plain = dict[str, Any]


async def responses(request: web.Request) -> web.StreamResponse:
    """The handler."""
    body = await body_of(request)
    before = _before(request, body.get("previous_response_id"))
    chat_body, conversation = to_chat(body, before.messages if before else [])
    if before is not None:
        chat_body.setdefault("session_id", public(before.session_id))
    chat = read_chat(request, chat_body)
    exchange = _Exchange(request, body, chat, conversation)
    if not body.get("stream"):
        reply = await request.app[DESK].whole(request.app[UPSTREAM], chat)
        blocks = Blocks()
        blocks.take(reply.completion)
        response = response_of(body, reply.completion, blocks, status_of(blocks))
        exchange.keep(response, reply.completion["choices"][0]["message"])
        request.app[DESK].receipts.keep(reply.receipt, response["id"])
        return web.json_response(response, headers=reply.receipt.headers())
    streamed = Streamed()
    return await send_stream(request, chat, streamed, exchange.events(streamed))


async def one_response(request: web.Request) -> web.StreamResponse:
    """`GET /v1/responses/{id}`."""
    name = request.match_info["name"]
    kept = request.app[CONVERSATIONS].find(name)
    if kept is None or not caller_of(request).owns(kept.session_id):
        return told(request, 404, {"message": f"no response {name[:80]!r} here", "type": "invalid_request_error"})
    return web.json_response(kept.response)


def _before(request: web.Request, name: Any) -> Kept | None:
    if name is None:
        return None
    kept = request.app[CONVERSATIONS].find(name) if isinstance(name, str) else None
    if kept is None or not caller_of(request).owns(kept.session_id):
        message = (
            "previous_response_id: no such response here (it was not stored, is old, or the gateway was restarted)"
        )
        raise BadRequest(f"{message}; send the conversation as input", "previous_response_id")
    return kept


class _Exchange:
    """One request and what is needed to answer it in its own words."""

    def __init__(self, request: web.Request, body: Plain, chat: ChatRequest, conversation: list[Plain]) -> None:
        self._request = request
        self._body = body
        self._chat = chat
        self._conversation = conversation
        self._number = -1

    def keep(self, response: Plain, message: Plain) -> None:
        """Let the next request refer to it, unless the caller forbade it."""
        if self._body.get("store") is False:
            return
        messages = [*self._conversation, {name: value for name, value in message.items() if value is not None}]
        size = self._request.content_length or 0
        kept = Kept(response=response, messages=messages, session_id=self._chat.session_id, size=size)
        self._request.app[CONVERSATIONS].keep(kept)

    async def events(self, streamed: Streamed) -> AsyncGenerator[bytes, None]:
        """The events of the stream."""
        blocks, first, begun = Blocks(), dict[str, Any](), dict[str, Any]()
        desk = self._request.app[DESK]
        async with aclosing(desk.stream(self._request.app[UPSTREAM], self._chat, streamed)) as chunks:
            async for chunk in chunks:
                if chunk.get("error"):
                    message = chunk["error"].get("message")
                    yield self._event({"type": "error", "code": "server_error", "message": message, "param": None})
                    continue
                if not begun:
                    first = chunk
                    begun = response_of(self._body, chunk, blocks, "in_progress")
                    yield self._event({"type": "response.created", "response": begun})
                    yield self._event({"type": "response.in_progress", "response": begun})
                for step in blocks.take(chunk):
                    for event in events_of(begun["id"], step):
                        yield self._event(event)
        if begun and streamed.receipt is not None:
            desk.receipts.keep(streamed.receipt, begun["id"])
        if streamed.gathered.failed or not streamed.gathered.finished:
            return
        for step in blocks.end():
            for event in events_of(begun["id"], step):
                yield self._event(event)
        status = status_of(blocks)
        response = response_of(self._body, first, blocks, status)
        self.keep(response, streamed.gathered.candidate(0).message())
        yield self._event({"type": f"response.{status}", "response": response})

    def _event(self, data: Plain) -> bytes:
        self._number += 1
        return sse.event({**data, "sequence_number": self._number}, data["type"])
