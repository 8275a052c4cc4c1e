"""Sending an answer piece by piece, and telling what went wrong in the words of the caller's dialect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing

from aiohttp import web

from producers.gateway import sse
from producers.gateway.access.callers import public
from producers.gateway.desk import Streamed, TurnFailed
from producers.gateway.keys import METRICS
from producers.gateway.requests import ChatRequest

TRAILER = "X-Hindstream-Trailer"
"""Header of a request: `true` asks for a comment at the end of the stream that tells where the turn is recorded."""

END = web.RequestKey("end", str)
"""Key of a request under which a handler says how it ended, where the status cannot: `error` or `aborted`."""

_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


async def send_stream(
    request: web.Request, chat: ChatRequest, streamed: Streamed, pieces: AsyncGenerator[bytes, None], end: bytes = b""
) -> web.StreamResponse:
    """Send `pieces` as they come, then `end` if the answer is whole or the server said itself that it is not.

    A stream that the server cut is cut here as well: the caller sees what he would have seen.

    Raises:
        TurnFailed: nothing came; nothing is sent yet.
    """
    response = web.StreamResponse(
        headers={
            **sse.HEADERS,
            "X-Session-Id": public(chat.session_id),
            "X-Hindstream-Recorded": "pending" if chat.recorded else "off",
        }
    )
    clock = asyncio.get_running_loop().time
    began_at = clock()
    async with aclosing(pieces):
        try:
            first = await anext(pieces, None)
        except TurnFailed as err:
            raise TurnFailed(err.failure, streamed.receipt) from err
        await response.prepare(request)
        if first is not None:
            await response.write(first)
        request.app[METRICS].first_byte_seconds.labels(request.path).observe(clock() - began_at)
        try:
            async for piece in pieces:
                await response.write(piece)
        except TurnFailed:
            _cut(request)
            return response
    receipt = streamed.receipt
    if receipt is not None and request.headers.get(TRAILER, "").strip().lower() == "true":
        await receipt.settled()
        await response.write(sse.comment("hindstream " + json.dumps(receipt.plain())))
    if streamed.gathered.failed or not streamed.gathered.finished:
        request[END] = "error"
    if streamed.gathered.failed or streamed.gathered.finished:
        await response.write(end)
    await response.write_eof()
    return response


def _cut(request: web.Request) -> None:
    request[END] = "error"
    if request.transport is not None:
        request.transport.abort()


def told(
    request: web.Request, status: int, error: dict[str, object], headers: dict[str, str] | None = None
) -> web.Response:
    """An error response in the form of the dialect that `request` speaks: OpenAI's, or Anthropic's for its paths."""
    if request.path.startswith("/v1/messages"):
        kind = _ANTHROPIC.get(status, "invalid_request_error" if status < 500 else "api_error")
        said: dict[str, object] = {"type": "error", "error": {"type": kind, "message": error.get("message")}}
    else:
        said = {"error": {"code": status, "param": None, **error}}
    return web.json_response(said, status=status, headers=headers)
