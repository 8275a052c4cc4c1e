"""The real OpenAI client through the gateway and the real model server: it sees what the server itself would say."""

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
from schemas.events import TurnRecorded
from tests.producers.gateway.logs import events_of
from tests.producers.gateway.upstreams import gateway, health

pytestmark = [pytest.mark.stack, pytest.mark.vllm, pytest.mark.slow]
QUESTION: dict[str, Any] = {"role": "user", "content": "Name three rivers of Europe."}
ASKED: dict[str, Any] = {"model": "policy", "messages": [QUESTION], "max_tokens": 12, "temperature": 0}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"enum": ["sea", "sky"]}}}},
}


@pytest.fixture(scope="module")
def topics(broker: str) -> str:
    """The broker, with its topics."""
    ensure_topics(broker, 8)
    return broker


@asynccontextmanager
async def clients(
    tmp_path: Path, server: str, broker: str
) -> AsyncIterator[tuple[openai.AsyncOpenAI, openai.AsyncOpenAI, str]]:
    """A client of the gateway, one of the server itself, and the gateway's address."""
    async with (
        gateway(tmp_path, server, broker) as address,
        openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="unused", max_retries=0) as through,
        openai.AsyncOpenAI(base_url=f"{server}/v1", api_key="unused", max_retries=0) as direct,
    ):
        yield through, direct, address


def session() -> str:
    return f"gw-{secrets.token_hex(4)}"


def turns_of(broker: str, name: str, count: int = 1) -> list[TurnRecorded]:
    found = [event.data for event in events_of(broker, name, count)]
    turns = [data for data in found if isinstance(data, TurnRecorded)]
    assert len(turns) == count
    return turns


def comparable(said: Any) -> dict[str, Any]:
    """What two runs of the same request have in common: all but ids and clocks."""
    plain: dict[str, Any] = said.model_dump()
    for name in ("id", "created", "system_fingerprint"):
        plain.pop(name, None)
    for choice in plain["choices"]:
        for call in (choice.get("message") or choice.get("delta") or {}).get("tool_calls") or []:
            call.pop("id", None)
        for entry in (choice.get("logprobs") or {}).get("content") or []:
            # Prefix caching changes the last digits of bfloat16.
            for one in (entry, *entry["top_logprobs"]):
                one.pop("logprob")
    return plain


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"stream_options": {"include_usage": True}},
        {"stop": [" the", "\n"], "max_tokens": 24},
        {"stop": "river", "extra_body": {"include_stop_str_in_output": True}},
        {"logprobs": True, "top_logprobs": 2, "max_tokens": 4},
        {"logprobs": True, "max_tokens": 4},
        {"max_tokens": 6, "extra_body": {"return_token_ids": True}},
        {"tools": [TOOL], "tool_choice": "none", "max_tokens": 6},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["a", "b"]}}}},
        {"n": 2, "temperature": 0.8, "seed": 3, "max_tokens": 6},
        {"messages": [QUESTION, {"role": "assistant", "content": "The"}], "extra_body": {"echo": True}},
    ],
)
async def test_a_stream_is_the_servers_own_word_for_word_and_the_engines_tokens_are_recorded(
    tmp_path: Path, vllm_server: str, topics: str, more: dict[str, Any]
) -> None:
    name, body = session(), {**ASKED, **more, "stream": True}
    async with clients(tmp_path, vllm_server, topics) as (through, direct, _):
        ours = [
            chunk async for chunk in await through.chat.completions.create(**body, extra_headers={"X-Session-Id": name})
        ]
        theirs = [chunk async for chunk in await direct.chat.completions.create(**body)]
    count = body.get("n", 1)
    for index in range(count):
        assert text(ours, index) == text(theirs, index)
        assert joined(ours, index) == joined(theirs, index)
    turns = await asyncio.to_thread(turns_of, topics, name, count)
    for index, turn in enumerate(turns):
        said = text(ours, index)
        assert (turn.response.content or "") == said[0]
        assert [call.arguments for call in turn.response.tool_calls] == said[1]
        assert turn.tokens.source == "engine"
        assert len(turn.tokens.response_ids) == len(turn.tokens.response_logprobs) > 0
        assert [(span.start, span.end) for span in turn.policy.spans] == [(0, len(turn.tokens.response_ids))]
    assert len({turn.group_id for turn in turns}) == 1
    assert (turns[0].group_id is None) == (count == 1)


def joined(chunks: list[Any], index: int) -> dict[str, Any]:
    """All that a stream says of one choice. Where the server is quicker than its reader it puts several tokens into one
    chunk, so where chunks end is no part of it."""
    said: dict[str, Any] = {"logprobs": [], "token_ids": [], "ends": [], "role": [], "rest": [], "fields": set()}
    for chunk in chunks:
        plain = comparable(chunk)
        for choice in plain.pop("choices"):
            if choice["index"] != index:
                continue
            said["fields"] |= set(choice)
            said["logprobs"] += (choice["logprobs"] or {}).get("content") or []
            said["token_ids"] += choice.get("token_ids") or []
            said["role"] += [choice["delta"]["role"]] if choice["delta"]["role"] else []
            said["ends"] += [(choice["finish_reason"], choice.get("stop_reason"))] if choice["finish_reason"] else []
        if plain not in said["rest"]:
            said["rest"].append(plain)
    return said


def text(chunks: list[Any], index: int) -> tuple[str, list[str]]:
    """The text and the arguments of each tool call of one choice."""
    said, calls = "", list[str]()
    for chunk in chunks:
        for choice in chunk.choices:
            if choice.index == index:
                said += choice.delta.content or ""
                for call in choice.delta.tool_calls or []:
                    calls += [""] * (call.index + 1 - len(calls))
                    calls[call.index] += call.function.arguments or ""
    return said, calls


@pytest.mark.parametrize(
    "more",
    [
        {"n": 3, "temperature": 0.8, "seed": 3, "max_tokens": 6},
        {"stop": ["river"], "max_tokens": 24},
        {"messages": [QUESTION, {"role": "assistant", "content": "The"}], "extra_body": {"echo": True}},
        {"logprobs": True, "max_tokens": 4, "extra_body": {"return_tokens_as_token_ids": True}},
    ],
)
async def test_a_whole_answer_is_the_servers_own(
    tmp_path: Path, vllm_server: str, topics: str, more: dict[str, Any]
) -> None:
    name, body = session(), {**ASKED, **more}
    async with clients(tmp_path, vllm_server, topics) as (through, direct, _):
        answer = await through.chat.completions.with_raw_response.create(**body, extra_headers={"X-Session-Id": name})
        ours, theirs = answer.parse(), await direct.chat.completions.create(**body)
    assert comparable(ours) == comparable(theirs)
    turns = await asyncio.to_thread(turns_of, topics, name, body.get("n", 1))
    assert answer.headers["X-Turn-Id"].split(",") == [turn.turn_id for turn in turns]
    for choice, turn in zip(ours.choices, turns, strict=True):
        assert turn.response.content == choice.message.content
        assert turn.group_id == turns[0].group_id
        assert len(turn.tokens.response_logprobs) == len(turn.tokens.response_ids) > 0


async def test_leaving_a_stream_ends_the_generation(tmp_path: Path, vllm_server: str, topics: str) -> None:
    name = session()
    body = {**ASKED, "max_tokens": 600, "stream": True, "extra_body": {"ignore_eos": True}}
    async with clients(tmp_path, vllm_server, topics) as (through, _, address):
        answer = await through.chat.completions.create(**body, extra_headers={"X-Session-Id": name})
        seen = ""
        async for chunk in answer:
            seen += chunk.choices[0].delta.content or ""
            if len(seen) > 20:
                break
        await answer.close()
        (turn,) = await asyncio.to_thread(turns_of, topics, name)
        assert (await health(address))["aborted"] == 1
    assert turn.finish_reason == "aborted"
    assert (turn.response.content or "").startswith(seen)
    assert 0 < len(turn.tokens.response_ids) == len(turn.tokens.response_logprobs) < 600
    assert [(span.version, span.end) for span in turn.policy.spans] == [(None, len(turn.tokens.response_ids))]


@pytest.mark.parametrize("stream", [False, True])
async def test_pictures_are_refused_as_a_model_without_eyes_refuses_them(
    tmp_path: Path, vllm_server: str, topics: str, stream: bool
) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, picture]}]
    async with clients(tmp_path, vllm_server, topics) as (through, direct, address):
        with pytest.raises(openai.BadRequestError) as ours:
            await through.chat.completions.create(model="policy", messages=messages, stream=stream)
        with pytest.raises(openai.BadRequestError) as theirs:
            await direct.chat.completions.create(model="policy", messages=messages)
        assert (await health(address))["refused"] == 1
    assert ours.value.message == theirs.value.message


async def test_the_models_are_listed(tmp_path: Path, vllm_server: str, topics: str) -> None:
    async with clients(tmp_path, vllm_server, topics) as (through, direct, _):
        assert [model.id async for model in through.models.list()] == [model.id async for model in direct.models.list()]
