"""What the gateway says of itself: readiness and figures."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from tests.producers.gateway.upstreams import chunk, gateway, plain, say, serving, stream, streaming

pytestmark = pytest.mark.stack
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
CHAT = "/v1/chat/completions"
NOWHERE = "127.0.0.1:9"


async def got(address: str, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as http, http.get(f"{address}{path}") as response:
        return response.status, await response.text()


async def figures(address: str) -> dict[tuple[str, ...], float]:
    """Each sample of /metrics under its name and the values of its labels, which are in order of their names."""
    status, text = await got(address, "/metrics")
    assert status == 200
    return {
        (
            sample.name.removeprefix("hindstream_gateway_"),
            *(sample.labels[label] for label in sorted(sample.labels)),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def models(request: web.Request) -> web.Response:
    return web.json_response({"data": []})


async def test_it_is_ready_while_the_model_server_answers_and_turns_can_be_kept(tmp_path: Path) -> None:
    async with (
        serving({CHAT: plain}, {"/v1/models": models}) as upstream,
        gateway(tmp_path, upstream, NOWHERE, publish_timeout_s=0.5, spool_max_bytes=3000) as address,
    ):
        assert await got(address, "/readyz") == (
            200,
            '{"status": "ready", "model_server": true, "recorder": true, "spool": true}',
        )
        for _ in range(4):
            _, _, headers = await say(address, BODY)
        assert headers["X-Hindstream-Recorded"] == "false"
        status, text = await got(address, "/readyz")
        assert (status, '"spool": false' in text) == (503, True)
        assert (await got(address, "/healthz"))[0] == 200


async def test_it_is_not_ready_without_a_model_server(tmp_path: Path) -> None:
    async with gateway(tmp_path, "http://127.0.0.1:9", NOWHERE) as address:
        status, text = await got(address, "/readyz")
    assert (status, '"model_server": false' in text) == (503, True)


async def test_the_figures_count_requests_turns_and_where_they_are(tmp_path: Path) -> None:
    broken = streaming([chunk({"content": "a"})])

    async def answer(request: web.Request) -> web.StreamResponse:
        return await (broken if (await request.json()).get("stream") else plain)(request)

    async with (
        serving({CHAT: answer}) as upstream,
        gateway(tmp_path / "one", upstream, NOWHERE, publish_timeout_s=0.5) as address,
        gateway(tmp_path / "two", upstream, NOWHERE, publish_timeout_s=0.5) as other,
    ):
        before = await figures(address)
        await say(address, BODY)
        await say(address, BODY, {"X-Turn-Type": "side", "X-Session-Id": "s"})
        await say(address, {**BODY, "messages": []})
        assert [event async for event in stream(address, BODY)] != []
        async with asyncio.timeout(30):  # the last turn is recorded after its stream has ended
            while (after := await figures(address)).get(("recorded", "spooled")) != 3:
                await asyncio.sleep(0.05)
        others = await figures(other)
    assert before["derived_sessions_total",] == 0
    assert after["derived_sessions_total",] == 2
    requests = {name[1]: value for name, value in after.items() if name[0] == "requests_total"}
    assert requests == {"ok": 2, "refused": 1, "error": 1}
    turns = {name[1:]: value for name, value in after.items() if name[0] == "turns_total"}
    assert turns == {("stop", "main", "none"): 1, ("stop", "side", "none"): 1, ("error", "main", "none"): 1}
    assert after["broker_away",] == 1
    assert after["spool_bytes",] > 0
    assert after["in_flight",] == 0
    assert after["request_seconds_count", CHAT] == 4
    assert after["first_byte_seconds_count", CHAT] == 1
    assert not any(name[0] == "requests_total" for name in others)
