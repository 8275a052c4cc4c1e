"""Anthropic's Messages API: translated both ways, with the real client, recorded with the engine's tokens."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest

from hindstream.cli.topics import ensure_topics
from producers.gateway.messages_api import whole_message
from producers.gateway.messages_request import to_chat
from producers.gateway.refusal import BadRequest
from schemas.events import NextStateObserved, TurnRecorded
from tests.producers.gateway.logs import events_of
from tests.producers.gateway.upstreams import gateway, serving, stream, thoughtful

NOWHERE = "127.0.0.1:9"
TOOLS: Any = [
    {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {"at": {}}}},
    {"name": "wait", "input_schema": {"type": "object"}},
]
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


@pytest.fixture(scope="module")
def topics(broker: str) -> str:
    """The broker, with its topics."""
    ensure_topics(broker, 8)
    return broker


@asynccontextmanager
async def client_of(tmp_path: Path, upstream: str, broker: str) -> AsyncIterator[tuple[anthropic.AsyncAnthropic, str]]:
    """A client of a gateway, and its address."""
    async with (
        gateway(tmp_path, upstream, broker, publish_timeout_s=0.5 if broker == NOWHERE else 5.0) as address,
        anthropic.AsyncAnthropic(base_url=address, api_key="unused", max_retries=0) as client,
    ):
        yield client, address


def session() -> str:
    return f"gw-{secrets.token_hex(4)}"


def test_every_kind_of_block_becomes_what_chat_completions_call_it() -> None:
    body = {
        "model": "m",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}],
        "stop_sequences": ["END"],
        "temperature": 0.5,
        "metadata": {"user_id": "u1"},
        "mystery": {"kept": 1},
        "tools": TOOLS,
        "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "See?"}, PICTURE]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                    {"type": "text", "text": "Yes."},
                    {"type": "tool_use", "id": "c0", "name": "look", "input": {"at": "sea"}},
                    {"type": "tool_use", "id": "c1", "name": "wait", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Go on."},
                    {"type": "tool_result", "tool_use_id": "c0", "content": [{"type": "text", "text": "blue"}]},
                    {"type": "tool_result", "tool_use_id": "c1"},
                ],
            },
        ],
    }
    look = {"name": "look", "parameters": TOOLS[0]["input_schema"], "description": "Look."}
    assert to_chat(body) == {
        "model": "m",
        "max_tokens": 9,
        "temperature": 0.5,
        "mystery": {"kept": 1},
        "stop": ["END"],
        "user": "u1",
        "tools": [
            {"type": "function", "function": look},
            {"type": "function", "function": {"name": "wait", "parameters": {"type": "object"}}},
        ],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "parallel_tool_calls": False,
        "messages": [
            {"role": "system", "content": "Be\nbrief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "See?"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                ],
            },
            {
                "role": "assistant",
                "content": "Yes.",
                "reasoning": "Hm.",
                "tool_calls": [
                    {"id": "c0", "type": "function", "function": {"name": "look", "arguments": '{"at": "sea"}'}},
                    {"id": "c1", "type": "function", "function": {"name": "wait", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "c0", "content": "blue"},
            {"role": "tool", "tool_call_id": "c1", "content": ""},
            {"role": "user", "content": "Go on."},
        ],
    }


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0]"),
        ({"messages": [{"role": "assistant", "content": [{"type": "image"}]}]}, "messages[0]"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tool_choice": {"type": "some"}}, "tool_choice"),
        ({"system": [{"type": "text"}]}, "system"),
    ],
)
def test_what_has_no_counterpart_is_refused_and_named(more: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        to_chat({"max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}], **more})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("choice", "stopped"),
    [
        ({"finish_reason": "stop"}, ("end_turn", None)),
        ({"finish_reason": "length"}, ("max_tokens", None)),
        ({"finish_reason": "stop", "stop_reason": "END"}, ("stop_sequence", "END")),
        ({"finish_reason": "stop", "stop_reason": 7}, ("end_turn", None)),
    ],
)
def test_the_end_of_an_answer_has_anthropics_name(choice: dict[str, Any], stopped: tuple[str, str | None]) -> None:
    message = whole_message({"id": "chatcmpl-9", "choices": [{"message": {"content": "a"}, **choice}]})
    assert (message["stop_reason"], message["stop_sequence"]) == stopped
    assert (message["id"], message["content"]) == ("msg_9", [{"type": "text", "text": "a"}])


def test_arguments_that_are_no_json_reach_the_caller_all_the_same() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": '{"a":'}}
    message = whole_message({"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "stop"}]})
    assert message["content"] == [{"type": "tool_use", "id": "c", "name": "f", "input": {"arguments": '{"a":'}}]
    assert message["stop_reason"] == "tool_use"


@pytest.mark.stack
@pytest.mark.parametrize("streamed", [False, True])
async def test_the_client_gets_reasoning_text_and_parallel_calls_and_answers_them(
    tmp_path: Path, topics: str, streamed: bool
) -> None:
    name, asked = session(), list[dict[str, Any]]()
    question: Any = [{"role": "user", "content": "Look at the sea."}]
    wanted: Any = {"model": "m", "max_tokens": 50, "tools": TOOLS, "extra_headers": {"X-Session-Id": name}}
    async with serving(thoughtful(asked)) as upstream, client_of(tmp_path, upstream, topics) as (client, _):

        async def ask(messages: Any) -> anthropic.types.Message:
            if not streamed:
                return await client.messages.create(**wanted, messages=messages)
            async with client.messages.stream(**wanted, messages=messages) as events:
                return await events.get_final_message()

        message = await ask(question)
        results: Any = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "done"}
            for block in message.content
            if block.type == "tool_use"
        ]
        said: Any = [block.model_dump(exclude_none=True) for block in message.content]
        await ask([*question, {"role": "assistant", "content": said}, {"role": "user", "content": results}])
    kinds = [block.type for block in message.content]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    assert [block.input for block in message.content if block.type == "tool_use"] == [{"at": "sea"}, {}]
    assert (message.stop_reason, message.usage.input_tokens, message.usage.output_tokens) == ("tool_use", 2, 7)
    assert asked[0]["tools"][0]["function"]["name"] == "look"
    found = [event.data for event in await asyncio.to_thread(events_of, topics, name, 4)]
    first, second = (data for data in found if isinstance(data, TurnRecorded))
    states = [data for data in found if isinstance(data, NextStateObserved)]
    assert first.response.content == "Looking."
    assert first.response.reasoning == "The sea."
    assert [call.arguments for call in first.response.tool_calls] == ['{"at":"sea"}', "{}"]
    assert (first.tokens.response_ids, first.finish_reason) == (list(range(5, 12)), "tool_calls")
    assert second.parent_turn_id == first.turn_id
    assert [(state.turn_id, state.kind, state.tool_call_id) for state in states] == [
        (first.turn_id, "tool_result", "c0"),
        (first.turn_id, "tool_result", "c1"),
    ]


@pytest.mark.stack
async def test_the_events_of_a_stream_are_anthropics_in_order(tmp_path: Path) -> None:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    async with (
        serving(thoughtful([])) as upstream,
        gateway(tmp_path, upstream, NOWHERE, publish_timeout_s=0.5) as address,
    ):
        found = [event async for event in stream(address, body, path="/v1/messages")]
    names = [event.split("\n")[0].removeprefix("event: ") for event in found]
    plain = [json.loads(event.split("data: ", 1)[1]) for event in found]
    assert names == [one["type"] for one in plain]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    twice = ["content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"]
    assert names == ["message_start", *block, *twice, *twice, *block, "message_delta", "message_stop"]
    assert [one["index"] for one in plain if one["type"] == "content_block_start"] == [0, 1, 2, 3]
    assert plain[0]["message"]["usage"]["input_tokens"] == 2
    assert plain[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


@pytest.mark.stack
async def test_errors_have_anthropics_form(tmp_path: Path) -> None:
    async with client_of(tmp_path, "http://127.0.0.1:9", NOWHERE) as (client, _):
        with pytest.raises(anthropic.BadRequestError, match="robot"):
            await client.messages.create(model="m", max_tokens=5, messages=[{"role": "robot", "content": "Hi"}])  # type: ignore[typeddict-item]
        with pytest.raises(anthropic.InternalServerError) as failed:
            await client.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "Hi"}])
    assert failed.value.status_code == 502
    assert failed.value.body == {
        "type": "error",
        "error": {"type": "api_error", "message": failed.value.body["error"]["message"]},
    }  # type: ignore[index]


@pytest.mark.stack
@pytest.mark.vllm
@pytest.mark.slow
async def test_a_message_of_the_real_server_is_recorded_with_its_tokens(
    tmp_path: Path, vllm_server: str, topics: str
) -> None:
    name = session()
    wanted: Any = {
        "model": "policy",
        "max_tokens": 12,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "Name a river."}],
        "extra_body": {"temperature": 0},
        "stop_sequences": ["\n"],
        "extra_headers": {"X-Session-Id": name},
    }
    async with client_of(tmp_path, vllm_server, topics) as (client, _):
        whole = await client.messages.create(**wanted)
        async with client.messages.stream(**wanted) as events:
            pieces = [text async for text in events.text_stream]
            streamed = await events.get_final_message()
        counted = await client.messages.count_tokens(model="policy", system="Be brief.", messages=wanted["messages"])
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.create(**{**wanted, "model": "nobody"})
    assert whole.content[0].text == streamed.content[0].text  # type: ignore[union-attr]
    assert (whole.stop_reason, whole.usage) == (streamed.stop_reason, streamed.usage)
    assert "".join(pieces) == whole.content[0].text  # type: ignore[union-attr]
    assert len(pieces) > 1
    assert counted.input_tokens == whole.usage.input_tokens
    turns = [event.data for event in await asyncio.to_thread(events_of, topics, name, 2)]
    for turn in turns:
        assert isinstance(turn, TurnRecorded)
        assert turn.messages[0] == {"role": "system", "content": "Be brief."}
        assert len(turn.tokens.prompt_ids) == whole.usage.input_tokens
        assert len(turn.tokens.response_ids) == len(turn.tokens.response_logprobs) == whole.usage.output_tokens
