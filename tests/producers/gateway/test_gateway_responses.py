"""OpenAI's Responses API: translated both ways, with the real client, recorded with the engine's tokens."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from hindstream.cli.topics import ensure_topics
from producers.gateway.conversations import Conversations, Kept
from producers.gateway.refusal import BadRequest
from producers.gateway.responses_request import to_chat
from schemas.events import NextStateObserved, TurnRecorded
from tests.producers.gateway.logs import events_of
from tests.producers.gateway.upstreams import gateway, serving, stream, thoughtful

NOWHERE = "127.0.0.1:9"
TOOLS: Any = [{"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True}]


@pytest.fixture(scope="module")
def topics(broker: str) -> str:
    """The broker, with its topics."""
    ensure_topics(broker, 8)
    return broker


@asynccontextmanager
async def client_of(tmp_path: Path, upstream: str, broker: str) -> AsyncIterator[tuple[openai.AsyncOpenAI, str]]:
    """A client of a gateway, and its address."""
    async with (
        gateway(tmp_path, upstream, broker, publish_timeout_s=0.5 if broker == NOWHERE else 5.0) as address,
        openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="unused", max_retries=0) as client,
    ):
        yield client, address


def session() -> str:
    return f"gw-{secrets.token_hex(4)}"


def test_every_kind_of_item_becomes_what_chat_completions_call_it() -> None:
    body = {
        "model": "m",
        "instructions": "Be brief.",
        "max_output_tokens": 9,
        "temperature": 0.5,
        "mystery": {"kept": 1},
        "tools": TOOLS,
        "tool_choice": {"type": "function", "name": "look"},
        "text": {"format": {"type": "json_schema", "name": "x", "schema": {"enum": ["a"]}, "strict": True}},
        "reasoning": {"effort": "low"},
        "include": ["message.output_text.logprobs"],
        "input": [
            {"role": "developer", "content": "Kind."},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "See?"},
                    {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
                ],
            },
            {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
            {"type": "function_call", "call_id": "c0", "name": "look", "arguments": '{"at":"sea"}'},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c0", "output": "blue"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "red"}]},
        ],
    }
    before = [{"role": "user", "content": "Before."}, {"role": "assistant", "content": "So."}]
    chat, conversation = to_chat(body, before)
    assert chat["messages"] == [{"role": "system", "content": "Be brief."}, *conversation]
    assert conversation == [
        *before,
        {"role": "system", "content": "Kind."},
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
                {"id": "c0", "type": "function", "function": {"name": "look", "arguments": '{"at":"sea"}'}},
                {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c0", "content": "blue"},
        {"role": "tool", "tool_call_id": "c1", "content": "red"},
    ]
    del chat["messages"]
    assert chat == {
        "model": "m",
        "temperature": 0.5,
        "mystery": {"kept": 1},
        "max_completion_tokens": 9,
        "tools": [
            {"type": "function", "function": {name: TOOLS[0][name] for name in ("name", "parameters", "strict")}}
        ],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"enum": ["a"]}, "strict": True},
        },
        "reasoning_effort": "low",
        "logprobs": True,
    }


def test_top_logprobs_count_only_where_log_probs_are_asked_for() -> None:
    assert "top_logprobs" not in to_chat({"input": "Hi", "top_logprobs": 2}, [])[0]
    asked = to_chat({"input": "Hi", "top_logprobs": 2, "include": ["message.output_text.logprobs"]}, [])[0]
    assert (asked["logprobs"], asked["top_logprobs"]) == (True, 2)


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"input": 7}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
    ],
)
def test_what_has_no_counterpart_is_refused_and_named(more: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        to_chat({"input": "Hi", **more}, [])
    assert refused.value.field == field


def test_the_oldest_responses_are_forgotten_first() -> None:
    def kept(name: str, size: int) -> Kept:
        return Kept(response={"id": name}, messages=[], session_id="s", size=size)

    by_number, by_size = Conversations(limit=2), Conversations(max_bytes=10)
    for name in ("a", "b", "c"):
        by_number.keep(kept(name, 1))
        by_size.keep(kept(name, 6))
    assert [by_number.find(name) is None for name in ("a", "b", "c")] == [True, False, False]
    assert [by_size.find(name) is None for name in ("a", "b", "c")] == [True, True, False]


@pytest.mark.stack
@pytest.mark.parametrize("streamed", [False, True])
async def test_the_client_gets_reasoning_text_and_parallel_calls_and_answers_by_reference(
    tmp_path: Path, topics: str, streamed: bool
) -> None:
    name, asked = session(), list[dict[str, Any]]()
    async with serving(thoughtful(asked)) as upstream, client_of(tmp_path, upstream, topics) as (client, _):

        async def ask(**more: Any) -> Any:
            wanted = {"model": "m", "tools": TOOLS, **more}
            if not streamed:
                return await client.responses.create(**wanted)
            async with client.responses.stream(**wanted) as events:
                async for _ in events:
                    pass
                return await events.get_final_response()

        first = await ask(input="Look at the sea.", extra_headers={"X-Session-Id": name})
        results = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "done"}
            for item in first.output
            if item.type == "function_call"
        ]
        second = await ask(input=results, previous_response_id=first.id)
        again = await client.responses.retrieve(first.id)
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            await ask(input="Hi", previous_response_id="resp_nobody")
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve("resp_nobody")
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call", "function_call"]
    assert (first.output_text, first.status, first.usage.total_tokens) == ("Looking.", "completed", 9)
    assert [(item.call_id, item.arguments) for item in first.output[2:]] == [("c0", '{"at":"sea"}'), ("c1", "{}")]
    assert [item.id for item in again.output] == [item.id for item in first.output]
    assert second.previous_response_id == first.id
    found = [event.data for event in await asyncio.to_thread(events_of, topics, name, 4)]
    one, two = (data for data in found if isinstance(data, TurnRecorded))
    states = [data for data in found if isinstance(data, NextStateObserved)]
    assert [message["role"] for message in two.messages] == ["user", "assistant", "tool", "tool"]
    assert one.tokens.response_ids == list(range(5, 12))
    assert two.parent_turn_id == one.turn_id
    assert [(state.turn_id, state.tool_call_id) for state in states] == [(one.turn_id, "c0"), (one.turn_id, "c1")]


@pytest.mark.stack
async def test_the_events_of_a_stream_are_numbered_and_in_order(tmp_path: Path) -> None:
    async with serving(thoughtful([])) as upstream, client_of(tmp_path, upstream, NOWHERE) as (client, address):
        events = [event async for event in await client.responses.create(model="m", input="Hi", stream=True)]
        raw = [event async for event in stream(address, {"input": "Hi"}, path="/v1/responses")]
    item = ["response.output_item.added", "response.content_part.added"]
    ended = ["response.content_part.done", "response.output_item.done"]
    arguments = "response.function_call_arguments"
    assert [event.type for event in events] == [
        *("response.created", "response.in_progress"),
        *(*item, "response.reasoning_text.delta", "response.reasoning_text.done", *ended),
        *(*item, *["response.output_text.delta"] * 2, "response.output_text.done", *ended),
        *("response.output_item.added", *[f"{arguments}.delta"] * 2, f"{arguments}.done", "response.output_item.done"),
        *("response.output_item.added", f"{arguments}.delta", f"{arguments}.done", "response.output_item.done"),
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert all(event.startswith(f"event: {known.type}\n") for event, known in zip(raw, events, strict=True))


@pytest.mark.stack
@pytest.mark.vllm
@pytest.mark.slow
async def test_a_response_of_the_real_server_is_recorded_with_its_tokens(
    tmp_path: Path, vllm_server: str, topics: str
) -> None:
    name = session()
    wanted: Any = {
        "model": "policy",
        "instructions": "Be brief.",
        "input": "Name a river.",
        "max_output_tokens": 8,
        "temperature": 0,
        "metadata": {"session_id": name},
    }
    async with client_of(tmp_path, vllm_server, topics) as (client, _):
        whole = await client.responses.create(**wanted, include=["message.output_text.logprobs"], store=False)
        deltas, last = [], None
        async for event in await client.responses.create(**wanted, stream=True):
            if event.type == "response.output_text.delta":
                deltas.append(event.delta)
            last = event
        assert last is not None
        assert last.type == "response.incomplete"
        next_one = await client.responses.create(
            model="policy", input="And more?", previous_response_id=last.response.id, max_output_tokens=4
        )
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(whole.id)
    assert whole.output_text == "".join(deltas) == last.response.output_text
    assert len(deltas) > 1
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")  # type: ignore[union-attr]
    assert len(whole.output[0].content[0].logprobs) == 8  # type: ignore[union-attr, arg-type]
    found = [event.data for event in await asyncio.to_thread(events_of, topics, name, 4)]
    turns = [turn for turn in found if isinstance(turn, TurnRecorded)]
    assert [turn.parent_turn_id for turn in turns][:2] == [None, None]
    for turn in turns[:2]:
        assert (len(turn.tokens.prompt_ids), len(turn.tokens.response_ids)) == (
            whole.usage.input_tokens,  # type: ignore[union-attr]
            8,
        )
    assert turns[2].messages[0]["content"] == "Name a river."
    assert next_one.previous_response_id == last.response.id
