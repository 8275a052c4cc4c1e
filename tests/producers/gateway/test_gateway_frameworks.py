"""LangChain's chat model and LiteLLM's client through the gateway: what agents are built with."""

from __future__ import annotations

import asyncio
import importlib
import secrets
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from hindstream.cli.topics import ensure_topics
from schemas.events import NextStateObserved, TurnRecorded
from tests.producers.gateway.logs import events_of
from tests.producers.gateway.upstreams import gateway, serving, thoughtful

pytestmark = pytest.mark.stack
TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
QUESTION = "Name three rivers of Europe."


@pytest.fixture(scope="module")
def topics(broker: str) -> str:
    """The broker, with its topics."""
    ensure_topics(broker, 8)
    return broker


@pytest.fixture(scope="module")
def litellm() -> Any:
    """LiteLLM, told before its import that its list of prices need not be fetched."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        return importlib.import_module("litellm")


def session() -> str:
    return f"gw-{secrets.token_hex(4)}"


def chat_model(address: str, name: str, **more: Any) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=f"{address}/v1",
        api_key=SecretStr("unused"),
        model="policy",
        default_headers={"X-Session-Id": name},
        max_retries=0,
        **more,
    )


async def turns_and_states(broker: str, name: str, count: int) -> tuple[list[TurnRecorded], list[NextStateObserved]]:
    found = [event.data for event in await asyncio.to_thread(events_of, broker, name, count)]
    return (
        [data for data in found if isinstance(data, TurnRecorded)],
        [data for data in found if isinstance(data, NextStateObserved)],
    )


@pytest.mark.parametrize("streamed", [False, True])
async def test_langchain_calls_tools_in_parallel_and_its_turns_are_linked(
    tmp_path: Path, topics: str, streamed: bool
) -> None:
    name = session()
    async with serving(thoughtful([])) as upstream, gateway(tmp_path, upstream, topics) as address:
        model = chat_model(address, name, streaming=streamed).bind_tools([TOOL])
        answer = await model.ainvoke([HumanMessage("Look.")])
        assert isinstance(answer, AIMessage)
        results = [ToolMessage(content="done", tool_call_id=call["id"]) for call in answer.tool_calls]
        await model.ainvoke([HumanMessage("Look."), answer, *results])
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("look", {"at": "sea"}), ("wait", {})]
    turns, states = await turns_and_states(topics, name, 4)
    assert [turn.parent_turn_id for turn in turns] == [None, turns[0].turn_id]
    assert [state.tool_call_id for state in states] == ["c0", "c1"]
    assert turns[0].tokens.response_ids == list(range(5, 12))


@pytest.mark.parametrize("streamed", [False, True])
async def test_litellm_calls_tools_in_parallel_and_its_turns_are_linked(
    tmp_path: Path, topics: str, litellm: Any, streamed: bool
) -> None:
    name = session()
    messages: list[Any] = [{"role": "user", "content": "Look."}]
    async with serving(thoughtful([])) as upstream, gateway(tmp_path, upstream, topics) as address:

        async def ask() -> Any:
            answer = await litellm.acompletion(
                model="hosted_vllm/policy",
                api_base=f"{address}/v1",
                api_key="unused",
                messages=messages,
                tools=[TOOL],
                stream=streamed,
                extra_headers={"X-Session-Id": name},
            )
            if not streamed:
                return answer.choices[0].message
            chunks = [chunk async for chunk in answer]
            return litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message

        said = await ask()
        messages += [said.model_dump(exclude_none=True)]
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "done"} for call in said.tool_calls]
        await ask()
    assert [(call.function.name, call.function.arguments) for call in said.tool_calls] == [
        ("look", '{"at":"sea"}'),
        ("wait", "{}"),
    ]
    assert said.reasoning_content == "The sea."
    turns, states = await turns_and_states(topics, name, 4)
    assert [turn.parent_turn_id for turn in turns] == [None, turns[0].turn_id]
    assert [state.tool_call_id for state in states] == ["c0", "c1"]


@pytest.mark.vllm
@pytest.mark.slow
async def test_both_stream_from_the_real_server_and_are_recorded(
    tmp_path: Path, vllm_server: str, topics: str, litellm: Any
) -> None:
    name = session()
    async with gateway(tmp_path, vllm_server, topics) as address:
        model = chat_model(address, name, temperature=0, max_completion_tokens=8, stream_usage=True)
        pieces = [piece async for piece in model.astream([HumanMessage(QUESTION)])]
        lite = await litellm.acompletion(
            model="hosted_vllm/policy",
            api_base=f"{address}/v1",
            api_key="unused",
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=8,
            stream=True,
            extra_headers={"X-Session-Id": name},
        )
        texts = [chunk.choices[0].delta.content or "" async for chunk in lite]
    said = "".join(str(piece.content) for piece in pieces)
    assert said == "".join(texts)
    assert sum((piece.usage_metadata or {}).get("output_tokens", 0) for piece in pieces) == 8
    turns, _ = await turns_and_states(topics, name, 2)
    for turn in turns:
        assert turn.response.content == said
        assert len(turn.tokens.response_ids) == len(turn.tokens.response_logprobs) == 8
