"""No request stalls or holds the gateway: bounds of values, messages, prompts, and of the time that bytes may take."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from producers.gateway.bodies import MAX_VALUES
from producers.gateway.requests import MAX_MESSAGES
from tests.producers.gateway.upstreams import gateway, plain, say, serving

NOWHERE = "127.0.0.1:9"
UPSTREAM = "http://127.0.0.1:9"
BODY = {"messages": [{"role": "user", "content": "Hi"}]}
CHAT = "/v1/chat/completions"
HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
GENEROUS_S = 60.0


async def opened(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = address.removeprefix("http://").rsplit(":", 1)
    return await asyncio.open_connection(host, int(port))


@pytest.mark.parametrize("value", [b"1", b"[]", b"{}", b'"x"', b"1.5"])
async def test_more_values_than_can_be_parsed_in_time_are_refused(tmp_path: Path, value: bytes) -> None:
    many = b",".join([value] * (MAX_VALUES + 2))
    body = b'{"messages": [{"role": "user", "content": "Hi"}], "more": [' + many + b"]}"
    async with gateway(tmp_path, UPSTREAM, NOWHERE) as address:
        status, answer, _ = await say(address, body)
    assert status == 413
    assert f"over {MAX_VALUES} commas and brackets" in answer["error"]["message"]


async def test_a_large_body_of_few_values_is_passed_on_whole(tmp_path: Path) -> None:
    asked: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return await plain(request)

    url = "data:image/png;base64," + "iVBORw0K" * (1 << 16)
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "a, b, c " * 10_000}]
    body = {"messages": [{"role": "user", "content": content}]}
    async with serving({CHAT: answer}) as upstream, gateway(tmp_path, upstream, NOWHERE, publish_timeout_s=0.2) as to:
        app = aiohttp.ClientSession()
        async with app, app.post(f"{to}{CHAT}", json=body) as response:
            assert response.status == 200, await response.text()
    assert asked[0]["messages"] == body["messages"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (CHAT, {"messages": BODY["messages"] * (MAX_MESSAGES + 1)}, "messages"),
        ("/v1/messages", {"max_tokens": 1, "messages": BODY["messages"] * (MAX_MESSAGES + 1)}, "messages"),
        ("/v1/responses", {"input": BODY["messages"] * (MAX_MESSAGES + 1)}, "messages"),
        ("/v1/completions", {"prompt": ["Hi"] * 2049}, "prompt"),
    ],
)
async def test_more_messages_or_prompts_than_anybody_means_are_refused(
    tmp_path: Path, path: str, body: dict[str, Any], field: str
) -> None:
    async with (
        gateway(tmp_path, UPSTREAM, NOWHERE) as address,
        aiohttp.ClientSession() as http,
        http.post(f"{address}{path}", json=body) as response,
    ):
        assert response.status == 413
        assert (await response.json())["error"]["message"].startswith(f"{field}: ")


async def test_a_body_that_does_not_come_is_refused_and_others_are_served_meanwhile(tmp_path: Path) -> None:
    async with (
        serving({CHAT: plain}) as upstream,
        gateway(tmp_path, upstream, NOWHERE, publish_timeout_s=0.2, body_timeout_s=2.0) as address,
    ):
        reader, writer = await opened(address)
        writer.write(f"{HEAD}Content-Length: 1000\r\n\r\n{{".encode())
        status, _, _ = await say(address, BODY)
        assert status == 200

        async def trickle() -> None:
            while True:
                writer.write(b" ")
                await asyncio.sleep(0.1)

        trickling = asyncio.ensure_future(trickle())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), GENEROUS_S)
        told = await asyncio.wait_for(reader.readuntil(b"}"), GENEROUS_S)
        trickling.cancel()
        writer.close()
    assert head.startswith(b"HTTP/1.1 408 ")
    assert b"the body was not here after 2 s" in told


@pytest.mark.parametrize("first", [b"", b"GET /healthz HTTP/1.1\r\nHost: gateway\r\n\r\n"])
async def test_a_head_that_does_not_end_loses_its_connection(tmp_path: Path, first: bytes) -> None:
    """The connection's first request, and the one after another."""
    async with gateway(tmp_path, UPSTREAM, NOWHERE, idle_s=0.5) as address:
        reader, writer = await opened(address)
        if first:
            writer.write(first)
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
        writer.write(HEAD.encode())

        async def trickle() -> None:
            while not writer.is_closing():
                writer.write(b"X-A: b\r\n")
                await asyncio.sleep(0.1)

        trickling = asyncio.ensure_future(trickle())
        try:
            while await asyncio.wait_for(reader.read(1000), GENEROUS_S):
                pass  # what was left of the first answer
        except ConnectionResetError:
            pass  # closed while we wrote: the same
        trickling.cancel()
        writer.close()


async def test_a_request_in_work_keeps_its_connection_however_long_it_takes(tmp_path: Path) -> None:
    async def slow(request: web.Request) -> web.Response:
        await asyncio.sleep(2.0)
        return await plain(request)

    async with (
        serving({CHAT: slow}) as upstream,
        gateway(tmp_path, upstream, NOWHERE, publish_timeout_s=0.2, idle_s=0.4) as address,
    ):
        status, answer, _ = await say(address, BODY)
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "Hello.")
