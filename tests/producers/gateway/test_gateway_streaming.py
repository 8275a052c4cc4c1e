"""Streams through the gateway: what the caller sees and when, and what is recorded however the stream ends."""

from __future__ import annotations

import asyncio
import json
import secrets
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from hindstream.cli.topics import ensure_topics
from schemas.events import NextStateObserved, SessionClosed, ToolCall, TurnRecorded, VersionSpan
from tests.producers.gateway.logs import events_of
from tests.producers.gateway.upstreams import (
    Handler,
    chunk,
    gateway,
    health,
    parsing,
    sampled,
    say,
    serving,
    stream,
    streaming,
)

pytestmark = pytest.mark.stack
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
CHAT, RENDER, GENERATE = "/v1/chat/completions", "/v1/chat/completions/render", "/inference/v1/generate"
ROLE = chunk({"role": "assistant", "content": ""})
NOWHERE = "127.0.0.1:9"


@pytest.fixture(scope="module")
def topics(broker: str) -> str:
    """The broker, with its topics."""
    ensure_topics(broker, 8)
    return broker


def session() -> str:
    return f"gw-{secrets.token_hex(4)}"


async def rendered(request: web.Request) -> web.Response:
    return web.json_response({"request_id": "chatcmpl-7", "token_ids": [1, 2], "sampling_params": {}})


def piece(text: str, ids: list[int], **more: Any) -> dict[str, Any]:
    """One event of vLLM's stream of tokens."""
    entries = [{"token": text, "logprob": -0.25, "bytes": None, "top_logprobs": []} for _ in ids]
    return {"choices": [{"index": 0, "text": text, "token_ids": ids, "logprobs": {"content": entries}, **more}]}


SPANS = [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 3}]
END = {"finish_reason": "stop", "stop_reason": None, "weight_versions": SPANS}


def turn_of(topics: str, name: str) -> TurnRecorded:
    (event,) = events_of(topics, name, 1)
    assert isinstance(event.data, TurnRecorded)
    return event.data


def shown(events: list[str]) -> list[Any]:
    return [json.loads(event[6:]) for event in events if event.startswith("data: {")]


async def test_each_piece_goes_out_when_the_server_gives_it(tmp_path: Path) -> None:
    seen = asyncio.Event()
    upstream_events = [ROLE, chunk({"content": "He"}), seen.wait(), chunk({"content": "llo"}, "stop")]
    async with (
        serving({CHAT: streaming(upstream_events)}) as upstream,
        gateway(tmp_path, upstream, NOWHERE, publish_timeout_s=0.5) as address,
        asyncio.timeout(20),
    ):
        found = []
        async for event in stream(address, BODY):
            found.append(event)
            if len(found) == 2:
                seen.set()  # the server goes on only when the caller has the first two
    assert shown(found) == [ROLE, chunk({"content": "He"}), chunk({"content": "llo"}, "stop")]
    assert found[-1] == "data: [DONE]"


async def test_a_stream_of_tokens_is_recorded_with_the_version_of_each(tmp_path: Path, topics: str) -> None:
    name = session()
    events = [piece("He", [5]), piece("llo", [6]), piece("", [7], **END)]
    routes: dict[str, Handler] = {RENDER: rendered, GENERATE: streaming(list(events))}
    body = {**BODY, "stream_options": {"include_usage": True}, "model": "m"}
    headers = {"X-Session-Id": name, "X-Hindstream-Trailer": "true", "X-Session-Done": "true"}
    async with serving(routes) as upstream, gateway(tmp_path, upstream, topics) as address:
        found = [event async for event in stream(address, body, headers)]
        chunks = shown(found)
        told = json.loads(found[-2].removeprefix(": hindstream "))
        async with aiohttp.ClientSession() as http:
            receipts = []
            for known in (told["turn_ids"][0], "chatcmpl-7"):
                async with http.get(f"{address}/v1/turns/{known}") as response:
                    receipts.append(await response.json())
            async with http.get(f"{address}/v1/turns/nobody") as response:
                assert response.status == 404
    assert [one["choices"][0]["delta"] for one in chunks[:-1]] == [
        {"role": "assistant", "content": ""},
        {"content": "He"},
        {"content": "llo"},
        {"content": ""},
    ]
    assert all(one["id"] == "chatcmpl-7" and one["object"] == "chat.completion.chunk" for one in chunks)
    assert not any(one["choices"][0].get("token_ids") or one["choices"][0]["logprobs"] for one in chunks[:-1])
    assert chunks[-1]["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    turn, closed = (event.data for event in events_of(topics, name, 2))
    assert isinstance(turn, TurnRecorded)
    assert isinstance(closed, SessionClosed)
    assert (turn.finish_reason, turn.response.content) == ("stop", "Hello")
    assert (turn.tokens.prompt_ids, turn.tokens.response_ids) == ([1, 2], [5, 6, 7])
    assert turn.tokens.response_logprobs == [-0.25] * 3
    assert turn.policy.spans == [VersionSpan(version=3, start=0, end=1), VersionSpan(version=4, start=1, end=3)]
    assert told == {"session_id": name, "turn_ids": [turn.turn_id], "recorded": "true"}
    assert receipts == [told, told]
    assert found[-1] == "data: [DONE]"


async def test_candidates_of_a_stream_are_a_group_of_turns(tmp_path: Path, topics: str) -> None:
    name = session()
    first = piece("a", [5], **END)
    second = {"choices": [{**piece("b", [6], **END)["choices"][0], "index": 1}]}
    messages = [*BODY["messages"], {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "More"}]
    body = {"messages": messages, "n": 2}
    async with (
        serving({RENDER: rendered, GENERATE: streaming([second, first])}) as upstream,
        gateway(tmp_path, upstream, topics) as address,
    ):
        found = shown([event async for event in stream(address, body, {"X-Session-Id": name})])
    assert [(one["choices"][0]["index"], one["choices"][0]["delta"]["content"]) for one in found] == [
        (0, ""),
        (1, ""),
        (1, "b"),
        (0, "a"),
    ]
    state, *turns = (event.data for event in events_of(topics, name, 3))
    assert isinstance(state, NextStateObserved)
    assert [turn.response.content for turn in turns if isinstance(turn, TurnRecorded)] == ["a", "b"]
    one, two = turns
    assert isinstance(one, TurnRecorded)
    assert isinstance(two, TurnRecorded)
    assert one.group_id == two.group_id is not None
    assert one.turn_id != two.turn_id
    assert one.next_state_ids == two.next_state_ids == [state.next_state_id]


CALLS = [
    {"index": 0, "id": "c0", "type": "function", "function": {"name": "look", "arguments": ""}},
    {"index": 0, "function": {"arguments": '{"at":'}},
    {"index": 0, "function": {"arguments": '"sea"}'}},
    {"index": 1, "id": "c1", "type": "function", "function": {"name": "wait", "arguments": "{}"}},
]


async def test_reasoning_and_parallel_tool_calls_keep_their_form_and_their_tokens(tmp_path: Path, topics: str) -> None:
    name, asked = session(), []

    async def version(request: web.Request) -> web.Response:
        return web.json_response({"weight_version": "12"})

    events = [
        {**ROLE, "prompt_token_ids": [1, 2]},
        chunk({"reasoning": "The sea."}, **sampled("The sea.", 5)),
        chunk({}, **sampled("</think>", 6)),  # what vLLM sends only where ids were asked for
        *[chunk({"tool_calls": [call]}, **sampled("x", 7 + i)) for i, call in enumerate(CALLS)],
        chunk({}, "tool_calls", **sampled("<|im_end|>", 11)),
    ]

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(await request.json())
        return await streaming(list(events))(request)

    app = {RENDER: parsing, CHAT: answer}
    body = {
        **BODY,
        "tools": [{"type": "function", "function": {"name": "look"}}],
        "mystery": {"kept": 1},
        "logprobs": False,
    }
    async with serving(app, {"/weight_info": version}) as upstream, gateway(tmp_path, upstream, topics) as address:
        found = shown([event async for event in stream(address, body, {"X-Session-Id": name})])
    assert asked[0]["mystery"] == {"kept": 1}
    assert (asked[0]["return_token_ids"], asked[0]["logprobs"]) == (True, True)
    deltas = [one["choices"][0]["delta"] for one in found]
    assert deltas == [ROLE["choices"][0]["delta"], {"reasoning": "The sea."}, *[{"tool_calls": [c]} for c in CALLS], {}]
    assert all(one["choices"][0].get("token_ids") is None for one in found)
    assert all(one["choices"][0].get("logprobs") is None for one in found)
    assert found[0]["prompt_token_ids"] is None
    turn = turn_of(topics, name)
    assert turn.response.reasoning == "The sea."
    assert turn.response.tool_calls == [
        ToolCall(id="c0", name="look", arguments='{"at":"sea"}'),
        ToolCall(id="c1", name="wait", arguments="{}"),
    ]
    assert turn.finish_reason == "tool_calls"
    assert turn.tokens.response_ids == [5, 6, 7, 8, 9, 10, 11]
    assert turn.tokens.response_logprobs == [-0.5] * 7
    assert turn.policy.spans == [VersionSpan(version=12, start=0, end=7)]


async def test_a_version_that_changed_while_the_server_parsed_is_not_guessed(tmp_path: Path, topics: str) -> None:
    name, versions = session(), iter(["3", "4"])

    async def version(request: web.Request) -> web.Response:
        return web.json_response({"weight_version": next(versions)})

    events = [ROLE, chunk({"content": "a"}, "stop", **sampled("a", 5))]
    async with (
        serving({RENDER: parsing, CHAT: streaming(list(events))}, {"/weight_info": version}) as upstream,
        gateway(tmp_path, upstream, topics) as address,
    ):
        assert len([event async for event in stream(address, BODY, {"X-Session-Id": name})]) == 3
    turn = turn_of(topics, name)
    assert turn.tokens.response_ids == [5]
    assert turn.policy.spans == [VersionSpan(version=None, start=0, end=1)]


async def test_a_caller_who_leaves_ends_the_generation_and_the_tokens_so_far_are_recorded(
    tmp_path: Path, topics: str
) -> None:
    name, ended = session(), asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            await response.write(f"data: {json.dumps(piece('He', [5]))}\n\n".encode())
            await response.write(f"data: {json.dumps(piece('llo', [6]))}\n\n".encode())
            await asyncio.sleep(3600)
            return response
        finally:
            ended.set()

    async with (
        serving({RENDER: rendered, GENERATE: endless}) as upstream,
        gateway(tmp_path, upstream, topics) as address,
        asyncio.timeout(20),
    ):
        seen = 0
        async for _ in stream(address, BODY, {"X-Session-Id": name}):
            seen += 1
            if seen == 3:
                break
        await ended.wait()
        turn = await asyncio.to_thread(turn_of, topics, name)
        counts = await health(address)
    assert (turn.finish_reason, turn.response.content) == ("aborted", "Hello")
    assert (turn.tokens.source, turn.tokens.response_ids) == ("engine", [5, 6])
    assert turn.tokens.response_logprobs == [-0.25, -0.25]
    assert turn.policy.spans == [VersionSpan(version=None, start=0, end=2)]
    assert (counts["aborted"], counts["errors"]) == (1, 0)


async def test_a_stream_that_the_server_cuts_is_cut_for_the_caller_and_recorded(tmp_path: Path, topics: str) -> None:
    name = session()
    events: list[Any] = [piece("He", [5]), piece("llo", [6])]
    async with (
        serving({RENDER: rendered, GENERATE: streaming(events, end=False)}) as upstream,
        gateway(tmp_path, upstream, topics) as address,
    ):
        events_seen = stream(address, BODY, {"X-Session-Id": name})
        found = [await anext(events_seen) for _ in range(3)]
        with pytest.raises(aiohttp.ClientError):
            await anext(events_seen)
        counts = await health(address)
    assert [one["choices"][0]["delta"]["content"] for one in shown(found)] == ["", "He", "llo"]
    turn = turn_of(topics, name)
    assert (turn.finish_reason, turn.tokens.response_ids) == ("error", [5, 6])
    assert (counts["aborted"], counts["errors"]) == (0, 1)


async def test_an_error_within_the_stream_is_passed_on_and_recorded(tmp_path: Path, topics: str) -> None:
    name = session()
    error = {"error": {"message": "out of memory", "type": "InternalServerError", "code": 500}}
    async with (
        serving({RENDER: rendered, GENERATE: streaming([piece("He", [5]), error])}) as upstream,
        gateway(tmp_path, upstream, topics) as address,
    ):
        found = [event async for event in stream(address, BODY, {"X-Session-Id": name})]
    assert shown(found)[-1] == error
    assert found[-1] == "data: [DONE]"
    turn = turn_of(topics, name)
    assert (turn.finish_reason, turn.response.content, turn.tokens.response_ids) == ("error", "He", [5])


async def refusing(request: web.Request) -> web.Response:
    return web.json_response({"error": {"message": "too long", "param": "messages", "code": 400}}, status=400)


async def failing(request: web.Request) -> web.Response:
    return web.json_response({"error": {"message": "out of memory"}}, status=500)


async def whole(request: web.Request) -> web.Response:
    return web.json_response({"choices": []})


@pytest.mark.parametrize(
    ("routes", "status", "recorded"),
    [
        ({RENDER: refusing}, 400, None),
        ({RENDER: rendered, GENERATE: refusing}, 400, None),
        ({CHAT: refusing}, 400, None),
        ({RENDER: rendered, GENERATE: failing}, 502, "true"),
        ({CHAT: whole}, 502, "true"),
        ({CHAT: streaming(["data: no JSON\n\n"])}, 502, "true"),
        ({CHAT: streaming(['data: {"choices": [3]}\n\n'])}, 502, "true"),
    ],
)
async def test_a_stream_that_does_not_begin_is_an_error_with_its_status(
    tmp_path: Path, topics: str, routes: dict[str, Handler], status: int, recorded: str | None
) -> None:
    async with serving(routes) as upstream, gateway(tmp_path, upstream, topics) as address:
        told, answer, headers = await say(address, {**BODY, "stream": True})
    assert told == status
    assert answer["error"]["message"]
    assert headers.get("X-Hindstream-Recorded") == recorded


async def test_hidden_reasoning_stays_hidden_and_its_tokens_are_recorded(tmp_path: Path, topics: str) -> None:
    name = session()
    events = [
        ROLE,
        chunk({"reasoning": "secret"}, **sampled("secret", 5)),
        chunk({"content": "a"}, "stop", **sampled("a", 6)),
    ]
    body = {**BODY, "include_reasoning": False, "logprobs": True}
    async with (
        serving({RENDER: parsing, CHAT: streaming(list(events))}) as upstream,
        gateway(tmp_path, upstream, topics) as address,
    ):
        found = [event async for event in stream(address, body, {"X-Session-Id": name})]
    assert "secret" not in "".join(found)
    assert [one["choices"][0]["delta"] for one in shown(found)] == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
    ]
    assert turn_of(topics, name).tokens.response_ids == [5, 6]
