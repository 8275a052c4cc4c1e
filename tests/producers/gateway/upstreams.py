"""Model servers that fail on demand. What a real one answers is tested with the real one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from producers.gateway.app import running
from producers.gateway.config import GatewayConfig

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

COMPLETION: dict[str, Any] = {
    "id": "x",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}],
}


@asynccontextmanager
async def serving(routes: dict[str, Handler], got: dict[str, Handler] | None = None) -> AsyncIterator[str]:
    """A server with these POST (and GET) routes; gives its address."""
    app = web.Application()
    for path, handler in (got or {}).items():
        app.router.add_get(path, handler)
    for path, handler in routes.items():
        app.router.add_post(path, handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def gateway(tmp_path: Path, upstream_url: str, bootstrap_servers: str, **more: Any) -> AsyncIterator[str]:
    """A gateway before that server."""
    config = GatewayConfig(
        bootstrap_servers=bootstrap_servers,
        upstream_url=upstream_url,
        spool_dir=tmp_path / "spool",
        blob_dir=tmp_path / "blobs",
        port=0,
        **{"publish_timeout_s": 5.0, "retry_s": 0.2, **more},
    )
    async with running(config) as address:
        yield address


async def plain(request: web.Request) -> web.Response:
    """A server that is no vLLM: it chats and knows no tokens."""
    return web.json_response(COMPLETION)


async def never(request: web.Request) -> web.Response:
    """A server that hangs."""
    await asyncio.sleep(3600)
    raise AssertionError


async def say(
    address: str, body: Any, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, JSON and headers of one chat completion request; `body` is sent as it is where it is bytes."""
    data = {"data": body} if isinstance(body, bytes) else {"json": body}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{address}/v1/chat/completions", headers=headers, **data) as response,
    ):
        return response.status, await response.json(), dict(response.headers)


async def health(address: str) -> dict[str, Any]:
    """What /healthz says."""
    async with aiohttp.ClientSession() as http, http.get(f"{address}/healthz") as response:
        assert response.status == 200
        found: dict[str, Any] = await response.json()
        return found


def chunk(delta: dict[str, Any], finish_reason: str | None = None, **more: Any) -> dict[str, Any]:
    """One chat.completion.chunk with one choice; `more` goes into the choice."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, **more}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def sampled(text: str, token: int, logprob: float = -0.5) -> dict[str, Any]:
    """The fields of a choice that name its token, as vLLM gives them."""
    return {"token_ids": [token], "logprobs": {"content": [{"token": text, "logprob": logprob, "top_logprobs": []}]}}


def streaming(events: list[dict[str, Any] | str | Awaitable[Any]], end: bool = True) -> Handler:
    """A server that streams these events: objects as JSON, text as it stands; what can be awaited is waited for first.
    Without `end` the connection is cut after them."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            if isinstance(event, dict | str):
                text = event if isinstance(event, str) else f"data: {json.dumps(event)}\n\n"
                await response.write(text.encode())
            else:
                await event
        if end:
            await response.write(b"data: [DONE]\n\n")
        elif request.transport is not None:
            await asyncio.sleep(0.05)  # what was written must have left
            request.transport.abort()
        return response

    return answer


async def parsing(request: web.Request) -> web.Response:
    """Render of a vLLM that has a reasoning parser: its own chunks are passed on."""
    return web.json_response({"token_ids": [1, 2], "sampling_params": {}, "reasoning_parser_kwargs": {}})


async def stream(
    address: str, body: dict[str, Any], headers: dict[str, str] | None = None, path: str = "/v1/chat/completions"
) -> AsyncIterator[str]:
    """Each event (or comment) of a streamed answer, without its empty line."""
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{address}{path}", json={**body, "stream": True}, headers=headers) as response,
    ):
        assert response.status == 200, await response.text()
        rest = ""
        async for piece in response.content.iter_any():
            *events, rest = (rest + piece.decode()).split("\n\n")
            for event in events:
                yield event


THOUGHTFUL: dict[str, Any] = {
    "role": "assistant",
    "content": "Looking.",
    "reasoning": "The sea.",
    "tool_calls": [
        {"id": "c0", "type": "function", "function": {"name": "look", "arguments": '{"at":"sea"}'}},
        {"id": "c1", "type": "function", "function": {"name": "wait", "arguments": "{}"}},
    ],
}
"""What `thoughtful` says."""


def thoughtful(asked: list[dict[str, Any]]) -> dict[str, Handler]:
    """A vLLM with parsers: it reasons, says a word and calls two tools, whole or streamed. `asked` gets each chat
    request as it came. Its tokens are 5 to 11."""
    ids = list(range(5, 12))

    async def render(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return await parsing(request)

    async def generate(request: web.Request) -> web.Response:
        entries = [{"token_id": token, "logprob": -0.5} for token in ids]
        choice = {"token_ids": ids, "finish_reason": "stop", "stop_reason": None, "logprobs": {"content": entries}}
        return web.json_response({"choices": [{**choice, "weight_versions": [{"version": "3", "start": 0, "end": 7}]}]})

    async def derender(request: web.Request) -> web.Response:
        choice = {"index": 0, "message": THOUGHTFUL, "finish_reason": "tool_calls"}
        return web.json_response({**COMPLETION, "id": "chatcmpl-1", "model": "m", "created": 1, "choices": [choice]})

    def call(index: int, arguments: str, **more: Any) -> dict[str, Any]:
        return {
            "tool_calls": [{"index": index, "function": {"arguments": arguments, **more.pop("function", {})}, **more}]
        }

    deltas = [
        {"reasoning": "The sea."},
        {"content": "Look"},
        {"content": "ing."},
        call(0, "", id="c0", type="function", function={"name": "look"}),
        call(0, '{"at":'),
        call(0, '"sea"}'),
        call(1, "{}", id="c1", type="function", function={"name": "wait"}),
    ]
    chunks = [chunk(delta, **sampled("x", token)) for delta, token in zip(deltas, ids, strict=True)]
    usage = {**chunk({}), "choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 7, "total_tokens": 9}}
    first = {**chunk({"role": "assistant", "content": ""}), "prompt_token_ids": [1, 2]}
    events = [first, *chunks, chunk({}, "tool_calls"), usage]
    return {
        "/v1/chat/completions/render": render,
        "/inference/v1/generate": generate,
        "/v1/chat/completions/derender": derender,
        "/v1/chat/completions": streaming(list(events)),
    }
