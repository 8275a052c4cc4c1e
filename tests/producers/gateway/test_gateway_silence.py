"""No key, header or text in what the gateway says of itself, whatever is asked and however it fails."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from producers.gateway.access.key_form import digest_of, new_key
from producers.gateway.redaction.rules import RedactionConfig
from tests.producers.gateway.upstreams import COMPLETION, Handler, gateway, never, plain, serving

NOWHERE = "127.0.0.1:9"
CANARY = "canary7"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PATHS = {
    CHAT: {"messages": [{"role": "user", "content": CANARY}]},
    COMPLETIONS: {"prompt": CANARY},
    "/v1/messages": {"max_tokens": 9, "messages": [{"role": "user", "content": CANARY}]},
    "/v1/responses": {"input": CANARY},
}


def answering(status: int, content_type: str, text: str) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=status, content_type=content_type, text=text)

    return handler


async def cut(request: web.Request) -> web.StreamResponse:
    """A stream that ends in the middle of a word of the request's."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(
        b'data: {"id": "x", "choices": [{"index": 0, "delta": {"content": "%s"}}]}\n\n' % CANARY.encode()
    )
    assert request.transport is not None
    request.transport.abort()
    return response


UPSTREAMS: dict[str, Handler] = {
    "answers": plain,
    "fails": answering(500, "application/json", f'{{"error": {{"message": "cannot read {CANARY}"}}}}'),
    "refuses": answering(400, "application/json", f'{{"error": {{"message": "{CANARY} is too long"}}}}'),
    "refuses the key": answering(401, "application/json", f'{{"error": {{"message": "wrong key {CANARY}-up"}}}}'),
    "says no JSON": answering(200, "text/html", f"<b>{CANARY}</b>"),
    "says other JSON": answering(200, "application/json", f'{{"choices": ["{CANARY}"]}}'),
    "is cut": cut,
    "hangs": never,
}


async def asked(address: str, key: str, path: str, body: Any, **more: str) -> str:
    """The answer's text; empty where there is none."""
    headers = {"Authorization": f"Bearer {key}", "X-Session-Id": CANARY, "X-Own": CANARY, "User-Agent": CANARY, **more}
    data = {"data": body} if isinstance(body, bytes) else {"json": body}
    try:
        async with aiohttp.ClientSession() as http, http.post(f"{address}{path}", headers=headers, **data) as response:
            return await response.text()
    except aiohttp.ClientError:
        return ""


async def raw(address: str, data: bytes) -> None:
    """What is no HTTP."""
    host, port = address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    await writer.drain()
    writer.write_eof()
    await reader.read()
    writer.close()


@pytest.mark.parametrize("upstream", UPSTREAMS)
async def test_neither_logs_nor_output_say_what_is_the_callers(
    tmp_path: Path,
    upstream: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # as `hindstream gateway run` does
    caplog.set_level("DEBUG")
    key = new_key()
    grants = f'[{{"digest": "{digest_of(key).hex()}", "tenant": "t", "recorded": true, "expires_at": null}}]'
    (tmp_path / "gateway-keys.json").write_text(f'{{"exist": true, "keys": {grants}}}')
    handler = UPSTREAMS[upstream]
    async with (
        serving({CHAT: handler, COMPLETIONS: handler}) as url,
        gateway(
            tmp_path,
            url,
            NOWHERE,
            publish_timeout_s=0.5,
            timeout_s=0.3,
            api_key=f"{CANARY}-up",
            database_url=f"postgresql+psycopg://{CANARY}:{CANARY}@127.0.0.1:9/{CANARY}",
            redaction=RedactionConfig(rules={"slow": "(?:x+x+)+y"}, within_s=0.1),
        ) as address,
    ):
        said = []
        for path, body in PATHS.items():
            said.append(await asked(address, key, path, body))
            said.append(await asked(address, key, path, {**body, "stream": True}))
            await asked(address, CANARY, path, body)
            await asked(address, key, path, body, **{"X-Turn-Type": CANARY})
            await asked(address, key, path, b'{"' + CANARY.encode())
        await asked(address, key, CHAT, {"messages": [{"role": "user", "content": f"{CANARY} {'x' * 5000}"}]})
        await asked(address, key, f"/{CANARY}", {})
        await asked(address, key, f"/v1/turns/{CANARY}", {})
        await raw(address, f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nbad header {CANARY}\r\n\r\n".encode())
        await raw(address, f"{CANARY} {CANARY} {CANARY}\r\n\r\n".encode())
    assert all(f"{CANARY}-up" not in text for text in said), "nor does a caller hear the gateway's own key"
    shown = caplog.text + "".join(str(record.__dict__.get("exc_info")) for record in caplog.records)
    shown += "".join(capfd.readouterr())
    assert key not in shown
    assert CANARY not in shown


async def test_a_fault_of_ours_is_told_by_its_place_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError(CANARY)

    caplog.set_level("DEBUG", "producers")
    async with gateway(tmp_path, "http://127.0.0.1:9", NOWHERE, publish_timeout_s=0.5) as address:
        with monkeypatch.context() as fault:
            fault.setattr("producers.gateway.receipts.Receipts.find", broken)
            async with aiohttp.ClientSession() as http, http.get(f"{address}/v1/turns/{CANARY}") as response:
                assert response.status == 500
                assert CANARY not in await response.text()
    assert "GET /v1/turns/{name} failed: RuntimeError" in caplog.text
    assert "test_gateway_silence" in caplog.text, "where it happened"
    assert CANARY not in caplog.text


async def test_an_event_that_cannot_be_written_is_told_by_its_id_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError(CANARY)

    caplog.set_level("DEBUG", "producers")
    monkeypatch.setattr("producers.gateway.recorder.encode", broken)
    async with (
        serving({CHAT: plain}) as url,
        gateway(tmp_path, url, NOWHERE, publish_timeout_s=0.5) as address,
        aiohttp.ClientSession() as http,
        http.post(f"{address}{CHAT}", json=PATHS[CHAT], headers={"X-Session-Id": CANARY}) as response,
    ):
        assert await response.json() == COMPLETION
        assert response.headers["X-Hindstream-Recorded"] == "false"
        name = response.headers["X-Turn-Id"]
    assert f"turn {name} could not be encoded; it is not recorded: ValueError" in caplog.text
    assert CANARY not in caplog.text
