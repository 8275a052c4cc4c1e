"""Raw completions: passed on as they are, and recorded with the engine's tokens."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web

from hindstream.cli.topics import ensure_topics
from producers.gateway.completions import prompts_of
from producers.gateway.refusal import BadRequest
from schemas.events import TurnRecorded
from tests.producers.gateway.logs import events_of
from tests.producers.gateway.upstreams import gateway, serving, streaming

PATH = "/v1/completions"


@pytest.fixture(scope="module")
def topics(broker: str) -> str:
    """The broker, with its topics."""
    ensure_topics(broker, 8)
    return broker


def session() -> str:
    return f"gw-{secrets.token_hex(4)}"


def turns_of(broker: str, name: str, count: int) -> list[TurnRecorded]:
    found = [event.data for event in events_of(broker, name, count)]
    return [data for data in found if isinstance(data, TurnRecorded)]


def test_a_prompt_is_text_or_ids_or_several_of_them() -> None:
    assert prompts_of({"prompt": "a"}) == ["a"]
    assert prompts_of({"prompt": ["a", "b"]}) == ["a", "b"]
    assert prompts_of({"prompt": [1, 2]}) == ["[1, 2]"]
    assert prompts_of({"prompt": [[1], [2]]}) == ["[1]", "[2]"]
    for wrong in (None, [], 3, {"a": 1}, ["a", 3], [[]], [[1], ["a"]]):
        with pytest.raises(BadRequest):
            prompts_of({"prompt": wrong})


def text_chunk(text: str, end: str | None = None) -> dict[str, Any]:
    return {"id": "cmpl-1", "object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": end}]}


@pytest.mark.stack
async def test_a_server_without_tokens_is_passed_on(tmp_path: Path, topics: str) -> None:
    name, asked = session(), []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(body := await request.json())
        if body.get("stream"):
            return await streaming([text_chunk("a"), text_chunk("b", "stop")])(request)
        return web.json_response(text_chunk("ab", "stop"))

    async with (
        serving({PATH: answer}) as upstream,
        gateway(tmp_path, upstream, topics) as address,
        openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="unused", max_retries=0) as client,
    ):
        wanted: Any = {"model": "m", "prompt": "Once", "extra_headers": {"X-Session-Id": name}}
        whole = await client.completions.create(**wanted)
        pieces = [chunk.choices[0].text async for chunk in await client.completions.create(**wanted, stream=True)]
        with pytest.raises(openai.BadRequestError, match="prompt"):
            await client.completions.create(**{**wanted, "prompt": []})
    assert (whole.choices[0].text, pieces) == ("ab", ["a", "b"])
    assert asked == [{"model": "m", "prompt": "Once"}, {"model": "m", "prompt": "Once", "stream": True}]
    for turn in turns_of(topics, name, 2):
        assert (turn.kind, turn.messages) == ("side", [{"role": "user", "content": "Once"}])
        assert (turn.response.content, turn.finish_reason, turn.tokens.source) == ("ab", "stop", "none")


@pytest.mark.stack
@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "more",
    [
        {"prompt": "The longest river of Europe is", "max_tokens": 6, "temperature": 0},
        {"prompt": ["The river", "The sea"], "n": 2, "max_tokens": 4, "temperature": 0.8, "seed": 1},
        {"prompt": [504, 4626], "max_tokens": 4, "temperature": 0, "logprobs": 2},
        {"prompt": "The river", "max_tokens": 4, "temperature": 0, "echo": True},
    ],
)
async def test_the_answer_is_the_servers_own_and_each_candidate_a_turn(
    tmp_path: Path, vllm_server: str, topics: str, more: dict[str, Any], streamed: bool
) -> None:
    name = session()
    headers = {"X-Session-Id": name, "X-Turn-Type": "main"}
    async with (
        gateway(tmp_path, vllm_server, topics) as address,
        openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="unused", max_retries=0) as through,
        openai.AsyncOpenAI(base_url=f"{vllm_server}/v1", api_key="unused", max_retries=0) as direct,
    ):
        ours = await texts(through, streamed, model="policy", **more, extra_headers=headers)
        theirs = await texts(direct, streamed, model="policy", **more)
    assert ours == theirs
    turns = await asyncio.to_thread(turns_of, topics, name, len(ours))
    assert [turn.response.content for turn in turns] == [text for _, (text, _) in sorted(ours.items())]
    for turn in turns:
        assert turn.kind == "main"
        if more.get("echo"):
            assert turn.tokens.source == "none"
            continue
        assert len(turn.tokens.response_ids) == len(turn.tokens.response_logprobs) == more["max_tokens"]
        assert len(turn.tokens.prompt_ids) >= 2
        assert [(span.start, span.end) for span in turn.policy.spans] == [(0, more["max_tokens"])]
    groups = [turn.group_id for turn in turns]
    assert groups == [None] * len(turns) if more.get("n") is None else groups[0] == groups[1] != groups[2] == groups[3]


async def texts(client: openai.AsyncOpenAI, streamed: bool, **wanted: Any) -> dict[int, tuple[str, bool]]:
    """The text of each choice, and whether it had log-probs."""
    found: dict[int, tuple[str, bool]] = {}
    if not streamed:
        answer = await client.completions.create(**wanted)
        return {choice.index: (choice.text, choice.logprobs is not None) for choice in answer.choices}
    async for chunk in await client.completions.create(**wanted, stream=True):
        for choice in chunk.choices:
            text, _ = found.get(choice.index, ("", False))
            found[choice.index] = (text + choice.text, choice.logprobs is not None)
    return found


@pytest.mark.stack
async def test_a_server_that_fails_is_told_and_the_turn_recorded(tmp_path: Path, topics: str) -> None:
    name = session()

    async def broken(request: web.Request) -> web.Response:
        return web.json_response({"choices": [{"index": 9, "text": "x"}]})

    async with (
        serving({PATH: broken}) as upstream,
        gateway(tmp_path, upstream, topics) as address,
        openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="unused", max_retries=0) as client,
    ):
        with pytest.raises(openai.InternalServerError) as failed:
            await client.completions.create(model="m", prompt="Once", extra_headers={"X-Session-Id": name})
    (turn,) = await asyncio.to_thread(turns_of, topics, name, 1)
    assert failed.value.status_code == 502
    assert (turn.finish_reason, failed.value.response.headers["X-Turn-Id"]) == ("error", turn.turn_id)
