"""Through the real model server and the real broker: what is recorded is what the engine did."""

from __future__ import annotations

import asyncio
import json
import secrets
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from hindstream.cli.topics import ensure_topics
from hindstream.stack.vllm import post
from schemas.events import NextStateObserved, SessionClosed, TurnRecorded, VersionSpan
from tests.producers.gateway.logs import events_of
from tests.producers.gateway.upstreams import gateway, health, say, stream

pytestmark = [pytest.mark.stack, pytest.mark.vllm, pytest.mark.slow]
END_OF_TURN = "2"
"""Id of <|im_end|>; an answer may be that alone."""
QUESTION = {"role": "user", "content": "Name three rivers of Europe."}


@pytest.fixture(scope="module")
def topics(broker: str) -> str:
    """The broker, with its topics."""
    ensure_topics(broker, 8)
    return broker


@pytest.fixture
def version_3(vllm_server: str) -> Iterator[str]:
    """The model server, saying for a while that its weights are version 3."""
    with urllib.request.urlopen(f"{vllm_server}/weight_info", timeout=30) as answer:
        before = json.load(answer)["weight_version"]
    post(f"{vllm_server}/update_weight_version", {"new_version": "3"}, 30)
    yield vllm_server
    post(f"{vllm_server}/update_weight_version", {"new_version": before}, 30)


def session() -> str:
    return f"gw-{secrets.token_hex(4)}"


def turn_of(data: Any) -> TurnRecorded:
    assert isinstance(data, TurnRecorded)
    return data


async def test_a_turn_has_the_engines_tokens_log_probs_and_version(
    tmp_path: Path, version_3: str, topics: str, model_dir: Path
) -> None:
    name = session()
    body = {"model": "policy", "messages": [QUESTION], "max_tokens": 24, "seed": 5, "temperature": 0.9}
    async with gateway(tmp_path, version_3, topics) as address:
        status, answer, headers = await say(address, body, {"X-Session-Id": name, "X-Turn-Type": "side"})
    assert status == 200
    assert headers["X-Hindstream-Recorded"] == "true"
    (event,) = events_of(topics, name, 1)
    turn = turn_of(event.data)
    assert (event.source, event.id, turn.kind) == ("hindstream/gateway", headers["X-Turn-Id"], "side")
    tokens = turn.tokens
    assert tokens.source == "engine"
    assert len(tokens.response_ids) == len(tokens.response_logprobs) == answer["usage"]["completion_tokens"] <= 24
    assert all(logprob < 0 for logprob in tokens.response_logprobs)
    assert turn.policy.spans == [VersionSpan(version=3, start=0, end=len(tokens.response_ids))]
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    said = answer["choices"][0]
    assert tokenizer.decode(tokens.response_ids, skip_special_tokens=True) == said["message"]["content"]
    assert turn.response.content == said["message"]["content"]
    assert tokenizer.decode(tokens.prompt_ids) == tokenizer.apply_chat_template(
        [QUESTION], tokenize=False, add_generation_prompt=True
    )
    assert len(tokens.prompt_ids) == answer["usage"]["prompt_tokens"]
    assert said["logprobs"] is None
    assert turn.sampling == {"max_tokens": 24, "seed": 5, "temperature": 0.9}


async def test_a_conversation_is_linked_and_its_session_closed(tmp_path: Path, vllm_server: str, topics: str) -> None:
    name = session()
    headers = {"X-Session-Id": name}
    async with gateway(tmp_path, vllm_server, topics) as address:
        _, first, first_headers = await say(address, {"messages": [QUESTION], "max_tokens": 8}, headers)
        said = first["choices"][0]["message"]
        reply = {"role": "user", "content": "Shorter, please."}
        body = {"messages": [QUESTION, {"role": "assistant", "content": said["content"]}, reply], "max_tokens": 8}
        _, _, second_headers = await say(address, body, {**headers, "X-Session-Done": "true"})
    one, state, two, closed = (event.data for event in events_of(topics, name, 4))
    one, two = turn_of(one), turn_of(two)
    assert isinstance(state, NextStateObserved)
    assert isinstance(closed, SessionClosed)
    assert (one.turn_id, two.turn_id) == (first_headers["X-Turn-Id"], second_headers["X-Turn-Id"])
    assert two.parent_turn_id == state.turn_id == one.turn_id
    assert two.next_state_ids == [state.next_state_id]
    assert (state.kind, state.role, state.content) == ("user_reply", "user", "Shorter, please.")
    assert (one.parent_turn_id, one.ordinal, two.ordinal) == (None, 0, 1)


def _tokens(logprobs: dict[str, Any]) -> list[Any]:
    return [(entry["token"], [top["token"] for top in entry["top_logprobs"]]) for entry in logprobs["content"]]


async def test_answers_are_those_of_the_servers_own_chat_endpoint(
    tmp_path: Path, vllm_server: str, topics: str
) -> None:
    asked: list[dict[str, Any]] = [
        {"max_tokens": 12, "temperature": 0.0},
        {"temperature": 0.0, "messages": [{"role": "user", "content": "Say hi."}]},  # ends by itself
        {"max_tokens": 12, "temperature": 0.0, "return_token_ids": True},
        {"max_tokens": 40, "temperature": 0.0, "stop": ["."]},
        {"max_tokens": 40, "temperature": 0.0, "stop": ["."], "include_stop_str_in_output": True},
        {"max_tokens": 40, "temperature": 0.0, "stop_token_ids": [30]},
        {"max_tokens": 6, "temperature": 0.0, "logprobs": True, "top_logprobs": 2},
        {"max_tokens": 8, "temperature": 0.0, "logit_bias": {END_OF_TURN: 100}},
        {"max_tokens": 8, "temperature": 0.0, "logit_bias": {END_OF_TURN: 100}, "logprobs": True},
        {"max_tokens": 8, "temperature": 0.0, "structured_outputs": {"choice": ["good", "bad"]}},
        {"max_tokens": 8, "temperature": 0.0, "response_format": {"type": "json_object"}},
    ]
    async with gateway(tmp_path, vllm_server, topics) as address:
        for more in asked:
            body = {"model": "policy", "messages": [QUESTION], **more}
            direct = await asyncio.to_thread(post, f"{vllm_server}/v1/chat/completions", body, 60)
            status, ours, _ = await say(address, body)
            assert status == 200
            for part in ("message", "finish_reason", "stop_reason", "token_ids"):
                assert ours["choices"][0][part] == direct["choices"][0][part], more
            assert ours["prompt_token_ids"] == direct["prompt_token_ids"]
            assert (ours["id"][:9], ours["object"], ours["model"]) == ("chatcmpl-", direct["object"], direct["model"])
            theirs = direct["choices"][0]["logprobs"]
            assert (ours["choices"][0]["logprobs"] is None) == (theirs is None)
            if theirs is not None:
                assert _tokens(ours["choices"][0]["logprobs"]) == _tokens(theirs), more
            assert ours["usage"] == direct["usage"]


async def test_refused_characters_reach_the_model_and_the_log(tmp_path: Path, vllm_server: str, topics: str) -> None:
    name = session()
    body = {"messages": [{"role": "user", "content": "a\x00b\ud800"}], "max_tokens": 4}
    async with gateway(tmp_path, vllm_server, topics) as address:
        status, _, _ = await say(address, body, {"X-Session-Id": name})
    assert status == 200
    turn = turn_of(events_of(topics, name, 1)[0].data)
    assert turn.messages[0]["content"] == "a\ufffdb\ufffd"
    assert turn.sanitised


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"model": "nobody"}, 404),
        ({"temperature": "hot"}, 400),
        ({"logprobs": True, "top_logprobs": -1}, 400),
        ({"messages": [{**QUESTION, "content": "a " * 5000}]}, 400),
    ],
)
async def test_what_the_server_refuses_the_caller_reads(
    tmp_path: Path, vllm_server: str, topics: str, more: dict[str, Any], status: int
) -> None:
    async with gateway(tmp_path, vllm_server, topics) as address:
        told, answer, _ = await say(address, {"messages": [QUESTION], "max_tokens": 4, **more})
        counts = await health(address)
    assert told == status
    assert answer["error"]["message"]
    assert counts["turns"]["recorded"] == 0


async def test_concurrent_requests_of_one_session_keep_their_own_next_states(
    tmp_path: Path, vllm_server: str, topics: str
) -> None:
    name = session()
    headers = {"X-Session-Id": name}
    async with gateway(tmp_path, vllm_server, topics) as address:
        _, first, _ = await say(address, {"messages": [QUESTION], "max_tokens": 6}, headers)
        said = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
        replies = [{"role": "user", "content": f"And {place}?"} for place in ("Asia", "Africa", "Peru")]
        bodies = [{"messages": [QUESTION, said, reply], "max_tokens": 6} for reply in replies]
        await asyncio.gather(*(say(address, body, headers) for body in bodies))
    found = [event.data for event in events_of(topics, name, 7)]
    states = {state.next_state_id: state.content for state in found if isinstance(state, NextStateObserved)}
    children = [turn for turn in found if isinstance(turn, TurnRecorded) and turn.parent_turn_id is not None]
    assert len(states) == len(children) == 3
    for turn in children:
        assert [states[state] for state in turn.next_state_ids] == [turn.messages[-1]["content"]]


async def test_a_stream_goes_on_through_a_swap_and_each_token_has_its_version(
    tmp_path: Path, version_3: str, topics: str
) -> None:
    name = session()
    body = {"messages": [QUESTION], "max_tokens": 60, "ignore_eos": True, "temperature": 0}
    seen = 0
    async with gateway(tmp_path, version_3, topics) as address:
        async for _ in stream(address, body, {"X-Session-Id": name}):
            seen += 1
            if seen == 5:
                await asyncio.to_thread(post, f"{version_3}/pause?mode=keep", {}, 30)
                await asyncio.to_thread(post, f"{version_3}/update_weight_version", {"new_version": "4"}, 30)
                await asyncio.to_thread(post, f"{version_3}/resume", {}, 30)
    turn = turn_of(events_of(topics, name, 1)[0].data)
    first, second = turn.policy.spans
    assert (first.version, second.version) == (3, 4)
    assert 0 == first.start < first.end == second.start < second.end == 60
    assert len(turn.tokens.response_ids) == len(turn.tokens.response_logprobs) == 60
