"""`/v1/chat/completions`: whole or streamed, in the words of the server behind."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from aiohttp import web

from producers.gateway import json_io, sse
from producers.gateway.bodies import body_of
from producers.gateway.desk import Streamed
from producers.gateway.keys import COUNTS, DESK, METRICS, UPSTREAM
from producers.gateway.replying import send_stream
from producers.gateway.requests import ChatRequest, chat_request
from schemas.events import TurnKind


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """The handler."""
    body = await body_of(request)
    chat = read_chat(request, body)
    if not body.get("stream"):
        reply = await request.app[DESK].whole(request.app[UPSTREAM], chat)
        return web.Response(
            body=json_io.dumps(reply.completion), content_type="application/json", headers=reply.receipt.headers()
        )
    streamed = Streamed()
    pieces = _events(request, chat, streamed)
    return await send_stream(request, chat, streamed, pieces, end=sse.event(sse.DONE))


def read_chat(request: web.Request, body: dict[str, object], kind: TurnKind = "main") -> ChatRequest:
    """`chat_request`, counted."""
    chat = chat_request(request, body, kind)
    if chat.derived:
        request.app[COUNTS]["derived_sessions"] += 1
        request.app[METRICS].derived.inc()
    return chat


async def _events(request: web.Request, chat: ChatRequest, streamed: Streamed) -> AsyncGenerator[bytes, None]:
    async with aclosing(request.app[DESK].stream(request.app[UPSTREAM], chat, streamed)) as chunks:
        async for chunk in chunks:
            yield sse.event(chunk)
