"""What callers hear when the request, the model server or the broker is at fault."""

from __future__ import annotations

import asyncio
import secrets
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from hindstream.cli.topics import ensure_topics
from producers.gateway.spool import Spool
from schemas.envelope import decode
from schemas.events import SessionClosed, TurnRecorded
from tests.producers.gateway.logs import events_of
from tests.producers.gateway.upstreams import gateway, health, never, plain, say, serving

pytestmark = pytest.mark.stack
BODY = {"messages": [{"role": "user", "content": "Hi"}]}
CHAT, RENDER, GENERATE = "/v1/chat/completions", "/v1/chat/completions/render", "/inference/v1/generate"
DERENDER = "/v1/chat/completions/derender"
NOWHERE = "127.0.0.1:9"
"""An address where no broker listens."""


@pytest.fixture(scope="module")
def topics(broker: str) -> str:
    """The broker, with its topics."""
    ensure_topics(broker, 8)
    return broker


def session() -> str:
    return f"gw-{secrets.token_hex(4)}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": "Hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["Hi"]}, "messages[0]"),
        ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
        ({**BODY, "n": 0}, "n"),
        ({**BODY, "n": 129}, "n"),
        ({**BODY, "n": "2"}, "n"),
        ({**BODY, "stream_options": True}, "stream_options"),
        ({**BODY, "tools": {}}, "tools"),
        ({**BODY, "session_id": 7}, "session_id"),
        ({**BODY, "session_id": ""}, "session_id"),
        ([], None),
        (b"{", None),
        (b"\xff", None),
        (b'{"messages": [{"role": "user", "content": "Hi"}], "seed": 1' + b"0" * 30 + b"}", None),
        (b'{"messages": [{"role": "user", "content": "Hi"}], "temperature": NaN}', None),
        (b"[" * 100_000, None),
        ({"messages": [{"role": "user", "content": nested(600)}]}, None),
        ({**BODY, "tools": [{"parameters": nested(120)}]}, None),
    ],
)
async def test_a_request_that_cannot_be_recorded_is_refused_and_named(
    tmp_path: Path, body: Any, field: str | None
) -> None:
    async with gateway(tmp_path, "http://127.0.0.1:9", NOWHERE) as address:
        status, answer, _ = await say(address, body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["param"] == field
    assert answer["error"]["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Session-Id": "x" * 257},
        {"X-Session-Id": ""},
        {"X-Session-Id": "a\tb"},
        {"X-Turn-Type": "other"},
        {"X-Session-Done": "perhaps"},
        {"X-Next-State-Kind": "smell"},
    ],
)
async def test_a_header_that_means_nothing_is_refused_and_named(tmp_path: Path, headers: dict[str, str]) -> None:
    async with gateway(tmp_path, "http://127.0.0.1:9", NOWHERE) as address:
        status, answer, _ = await say(address, BODY, headers)
    assert (status, answer["error"]["param"]) == (400, next(iter(headers)))


@pytest.mark.parametrize(
    "more",
    [{"session_id": 7}, {"turn_type": "other"}, {"session_done": "perhaps"}, {"next_state_kind": 1}, {"no_record": 1}],
)
async def test_a_field_of_ours_that_means_nothing_is_refused_and_named(tmp_path: Path, more: dict[str, Any]) -> None:
    async with gateway(tmp_path, "http://127.0.0.1:9", NOWHERE) as address:
        status, answer, _ = await say(address, {**BODY, **more})
    assert (status, answer["error"]["param"]) == (400, next(iter(more)))


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/messages", "/v1/responses"])
async def test_fields_of_the_body_say_what_headers_do_and_stay_here(tmp_path: Path, topics: str, path: str) -> None:
    asked: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return await plain(request)

    name = session()
    ours = {"session_id": name, "turn_type": "side", "session_done": True, "next_state_kind": "terminal_output"}
    said = {"/v1/completions": {"prompt": "Hi"}, "/v1/responses": {"input": "Hi"}}.get(path, BODY)
    body = {**said, "max_tokens": 8, "made_up": 1, **ours}
    async with (
        serving({CHAT: answer, "/v1/completions": answer}) as upstream,
        gateway(tmp_path, upstream, topics) as to,
    ):
        async with aiohttp.ClientSession() as http, http.post(f"{to}{path}", json=body) as response:
            told = dict(response.headers)
            assert response.status == 200, await response.text()
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{to}{path}", json={**body, "no_record": True}) as response,
        ):
            assert response.headers["X-Hindstream-Recorded"] == "off"
    assert all(one["made_up"] == 1 for one in asked)
    assert not any(field in one for one in asked for field in (*ours, "no_record"))
    turn, closed = (event.data for event in events_of(topics, name, 2))
    assert isinstance(turn, TurnRecorded)
    assert isinstance(closed, SessionClosed)
    assert (turn.turn_id, turn.kind, closed.session_id) == (told["X-Turn-Id"], "side", name)


@pytest.mark.parametrize(("path", "status"), [("/v1/nothing", 404), ("/v1/chat/completions", 405)])
async def test_what_is_not_here_is_told_in_the_same_form(tmp_path: Path, path: str, status: int) -> None:
    async with (
        gateway(tmp_path, "http://127.0.0.1:9", NOWHERE) as address,
        aiohttp.ClientSession() as http,
        http.get(f"{address}{path}") as response,
    ):
        assert response.status == status
        assert path in (await response.json())["error"]["message"]


async def test_a_body_over_the_bound_is_refused(tmp_path: Path) -> None:
    async with gateway(tmp_path, "http://127.0.0.1:9", NOWHERE, max_body_bytes=1000) as address:
        status, answer, _ = await say(address, {"messages": [{"role": "user", "content": "x" * 2000}]})
    assert status == 413
    assert "1000 bytes" in answer["error"]["message"]


async def test_a_server_without_tokens_is_served_and_its_turns_say_so(tmp_path: Path, topics: str) -> None:
    name = session()
    async with serving({CHAT: plain}) as upstream, gateway(tmp_path, upstream, topics) as address:
        status, answer, headers = await say(address, BODY, {"X-Session-Id": name, "X-Session-Done": "true"})
    assert status == 200
    assert answer["choices"][0]["message"]["content"] == "Hello."
    assert headers["X-Hindstream-Recorded"] == "true"
    turn, closed = (event.data for event in events_of(topics, name, 2))
    assert isinstance(turn, TurnRecorded)
    assert isinstance(closed, SessionClosed)
    assert (turn.tokens.source, turn.tokens.response_ids, turn.policy.spans) == ("none", [], [])
    assert headers["X-Turn-Id"] == turn.turn_id


async def failing(request: web.Request) -> web.Response:
    return web.json_response({"error": {"message": "out of memory"}}, status=500)


async def garbage(request: web.Request) -> web.Response:
    return web.json_response({"token_ids": [1]})


async def rendered(request: web.Request) -> web.Response:
    return web.json_response({"token_ids": [1, 2], "sampling_params": {}})


async def answered(request: web.Request) -> web.Response:
    content = [{"token_id": 5, "logprob": -1.0}]
    choice = {"token_ids": [5], "finish_reason": "length", "logprobs": {"content": content}, "weight_versions": []}
    return web.json_response({"choices": [choice]})


async def refusing(request: web.Request) -> web.Response:
    return web.json_response({"error": {"message": "too long", "param": "messages", "code": 400}}, status=400)


async def empty(request: web.Request) -> web.Response:
    return web.Response(status=200)


async def deep(request: web.Request) -> web.Response:
    return web.Response(body=b'{"a":' + b"[" * 600 + b"]" * 600 + b"}", content_type="application/json")


@pytest.mark.parametrize(
    ("routes", "status"),
    [
        ({RENDER: failing}, 502),
        ({RENDER: garbage}, 502),
        ({RENDER: empty}, 502),
        ({RENDER: deep}, 502),
        ({RENDER: never}, 504),
        ({RENDER: rendered, GENERATE: never}, 504),
        ({RENDER: rendered, GENERATE: failing}, 502),
        ({RENDER: rendered, GENERATE: answered, DERENDER: refusing}, 502),
        (None, 502),
    ],
)
async def test_a_model_server_that_fails_is_told_and_the_turn_recorded_as_an_error(
    tmp_path: Path, topics: str, routes: dict[str, Any] | None, status: int
) -> None:
    name = session()
    async with serving(routes or {}) as upstream:
        there = upstream if routes is not None else f"http://127.0.0.1:{free_port()}"
        async with gateway(tmp_path, there, topics, timeout_s=1.0) as address:
            told, answer, headers = await say(address, BODY, {"X-Session-Id": name})
    assert told == status
    assert answer["error"]["type"] == "upstream_error"
    assert headers["X-Hindstream-Recorded"] == "true"
    (turn,) = (event.data for event in events_of(topics, name, 1))
    assert isinstance(turn, TurnRecorded)
    assert (turn.finish_reason, turn.turn_id) == ("error", headers["X-Turn-Id"])


async def test_what_the_model_server_refuses_is_passed_on_and_no_turn(tmp_path: Path) -> None:
    async with serving({RENDER: refusing}) as upstream, gateway(tmp_path, upstream, NOWHERE) as address:
        status, answer, headers = await say(address, BODY)
        counts = await health(address)
    assert (status, answer["error"]["message"]) == (400, "too long")
    assert "X-Turn-Id" not in headers
    assert (counts["refused"], counts["turns"]["recorded"]) == (1, 0)


async def test_a_caller_who_leaves_ends_the_work_and_the_turn_is_aborted(tmp_path: Path, topics: str) -> None:
    name, began, ended = session(), asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        began.set()
        try:
            return await never(request)
        finally:
            ended.set()

    async with serving({RENDER: slow}) as upstream, gateway(tmp_path, upstream, topics) as address:
        asking = asyncio.ensure_future(say(address, BODY, {"X-Session-Id": name}))
        await asyncio.wait_for(began.wait(), 10)
        asking.cancel()
        await asyncio.wait_for(ended.wait(), 10)
    (turn,) = (event.data for event in events_of(topics, name, 1))
    assert isinstance(turn, TurnRecorded)
    assert (turn.finish_reason, turn.tokens.source) == ("aborted", "none")


async def test_while_the_broker_is_away_turns_wait_on_disk_and_come_in_order(tmp_path: Path, topics: str) -> None:
    name = session()
    headers = {"X-Session-Id": name}
    async with serving({CHAT: plain}) as upstream:
        async with gateway(tmp_path, upstream, NOWHERE, publish_timeout_s=1.0) as address:
            clock = asyncio.get_running_loop().time
            told = [await say(address, BODY, headers)]
            before = clock()
            told += [await say(address, BODY, headers) for _ in range(5)]
            assert clock() - before < 1.0, "a broker known to be away costs a request nothing"
            counts = await health(address)
        assert [found[2]["X-Hindstream-Recorded"] for found in told] == ["spooled"] * 6
        assert (counts["broker"], counts["turns"]["spooled"]) == ("away", 6)
        assert counts["spool_bytes"] > 0
        async with gateway(tmp_path, upstream, topics) as address:
            told.append(await say(address, BODY, headers))
            turns = [event.data for event in await asyncio.to_thread(events_of, topics, name, 7)]
            while (await health(address))["spool_bytes"]:
                await asyncio.sleep(0.1)
            told.append(await say(address, BODY, headers))
    assert told[-1][2]["X-Hindstream-Recorded"] == "true"
    assert [turn.turn_id for turn in turns if isinstance(turn, TurnRecorded)] == [t[2]["X-Turn-Id"] for t in told[:7]]


async def test_a_broker_that_comes_back_is_found_without_a_request(tmp_path: Path, topics: str) -> None:
    name, port = session(), free_port()
    broker_host, broker_port = topics.rsplit(":", 1)
    async with (
        serving({CHAT: plain}) as upstream,
        gateway(tmp_path, upstream, f"127.0.0.1:{port}", publish_timeout_s=1.0) as address,
    ):
        _, _, headers = await say(address, BODY, {"X-Session-Id": name})
        assert headers["X-Hindstream-Recorded"] == "spooled"

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            to_reader, to_writer = await asyncio.open_connection(broker_host, int(broker_port))
            await asyncio.gather(_pump(reader, to_writer), _pump(to_reader, writer), return_exceptions=True)

        bridge = await asyncio.start_server(forward, "127.0.0.1", port)
        (event,) = await asyncio.to_thread(events_of, topics, name, 1)
        bridge.close()
    assert event.id == headers["X-Turn-Id"]


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


async def test_when_the_spool_is_full_too_the_caller_is_served_and_told(tmp_path: Path) -> None:
    async with (
        serving({CHAT: plain}) as upstream,
        gateway(tmp_path, upstream, NOWHERE, publish_timeout_s=0.5, spool_max_bytes=100) as address,
    ):
        status, _, headers = await say(address, BODY)
        counts = await health(address)
    assert status == 200
    assert headers["X-Hindstream-Recorded"] == "false"
    assert counts["turns"]["not_recorded"] == 1


async def test_a_turn_over_a_mebibyte_waits_on_disk_as_a_claim_check(tmp_path: Path) -> None:
    large = {"messages": [{"role": "user", "content": "x" * (1 << 20)}]}
    async with (
        serving({CHAT: plain}) as upstream,
        gateway(tmp_path, upstream, NOWHERE, publish_timeout_s=0.5) as address,
    ):
        _, _, headers = await say(address, large)
    assert headers["X-Hindstream-Recorded"] == "spooled"
    segment = Spool(tmp_path / "spool", 1 << 20).oldest()
    assert segment is not None
    assert segment[1] is not None
    (record,) = segment[1]
    assert dict(record.headers)["ce_dataref"].startswith(b"sha256:")
    assert headers["X-Session-Id"].startswith("derived-")
    with pytest.raises(ValueError, match="claim check"):
        decode(record.value, record.headers)


async def test_logs_hold_neither_text_nor_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "producers")
    body = {"messages": [{"role": "user", "content": "my secret words"}]}
    async with (
        serving({RENDER: failing}) as upstream,
        gateway(tmp_path, upstream, NOWHERE, publish_timeout_s=0.5, api_key="sk-key") as address,
    ):
        await say(address, body)
    assert "the model server failed (502)" in caplog.text
    assert "out of memory" not in caplog.text, "a server's words may quote the request"
    assert "secret" not in caplog.text
    assert "sk-key" not in caplog.text


async def test_the_models_are_those_of_the_server(tmp_path: Path) -> None:
    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": request.headers["Authorization"]}]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    upstream = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with (
        gateway(tmp_path, upstream, NOWHERE, api_key="k") as address,
        aiohttp.ClientSession() as http,
        http.get(f"{address}/v1/models") as response,
    ):
        assert await response.json() == {"data": [{"id": "Bearer k"}]}
    await runner.cleanup()
