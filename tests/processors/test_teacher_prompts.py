"""The teacher's prompt is the one that the turn saw, token for token, the hint aside."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from processors.evaluators.hinted import Place, hinted_prompt, render, with_hint
from processors.evaluators.inputs import Turn
from processors.evaluators.server import ModelServer
from schemas.arrays import pack_floats, pack_ids
from tests.processors.evaluating import server

HINT = "Be brief."
SYSTEM = {"role": "system", "content": "You know much."}
USER = {"role": "user", "content": "What is rain?"}
TOOLS = [{"type": "function", "function": {"name": "rain", "parameters": {"type": "object", "properties": {"at": {}}}}}]
CALL = {"id": "c", "type": "function", "function": {"name": "rain", "arguments": '{"at": "sea"}'}}
CALLED = [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
REQUESTS: dict[str, dict[str, Any]] = {
    "user alone": {"messages": [USER]},
    "system": {"messages": [SYSTEM, USER]},
    "tools": {"messages": [SYSTEM, USER], "tools": TOOLS, "tool_choice": "none"},
    "a tool's result": {
        "messages": [SYSTEM, *CALLED, {"role": "tool", "tool_call_id": "c", "content": "wet"}],
        "tools": TOOLS,
        "tool_choice": "none",
    },
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is rain?"}]}]},
    "template's arguments": {"messages": [SYSTEM, USER], "chat_template_kwargs": {"enable_thinking": False}},
    "an answer that goes on": {
        "messages": [USER, {"role": "assistant", "content": "Rain is"}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
}


def turn_of(request: dict[str, Any], prompt: list[int]) -> Turn:
    """As the gateway records it: what is neither messages nor tools is sampling."""
    return Turn(
        turn_id="t",
        messages=request["messages"],
        tools=request.get("tools", []),
        response={"content": "x"},
        sampling={name: value for name, value in request.items() if name not in ("messages", "tools")},
        token_source="engine",
        prompt_ids=pack_ids(prompt),
        response_ids=pack_ids([1]),
        response_logprobs=pack_floats([-1.0]),
    )


@pytest.mark.stack
@pytest.mark.vllm
async def test_it_is_the_policys_own_rendering_whatever_the_request_says(vllm_server: str) -> None:
    async with aiohttp.ClientSession() as http:
        policy = ModelServer(server(vllm_server), http)

        async def seen(messages: list[dict[str, Any]], request: dict[str, Any]) -> list[int]:
            body = {"model": "policy", **request, "messages": messages}
            ids: list[int] = (await policy.post("/v1/chat/completions/render", body))["token_ids"]
            return ids

        for name, request in REQUESTS.items():
            prompt = await seen(request["messages"], request)
            turn = turn_of(request, prompt)
            assert await render(policy, turn, turn.messages) == prompt, name
            places: tuple[Place, ...] = ("last_user", "system", "tool_result")
            for place in places:
                hinted = with_hint(turn.messages, HINT, place)
                ours = hinted_prompt(prompt, prompt, await render(policy, turn, hinted))
                assert ours == await seen(hinted, request), (name, place)
                assert ours != prompt


class Told:
    """A server that keeps what it is asked to render."""

    model = asked_as = "policy"

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    async def post(self, _: str, body: dict[str, Any]) -> dict[str, Any]:
        self.bodies.append(body)
        return {"token_ids": [1]}


async def test_every_field_that_shapes_a_prompt_is_passed_on_and_no_other() -> None:
    shaping = {
        "add_generation_prompt": False,
        "add_special_tokens": True,
        "chat_template": "{{ messages }}",
        "chat_template_kwargs": {"enable_thinking": False},
        "continue_final_message": True,
        "documents": [{"text": "d"}],
        "reasoning_effort": "low",
    }
    request = {"messages": [USER], "tools": TOOLS, "tool_choice": "required", "temperature": 0.7, "seed": 3, **shaping}
    told: Any = Told()
    await render(told, turn_of(request, [1]), [USER])
    assert told.bodies == [
        {"model": "policy", "messages": [USER], "max_tokens": 1, "tools": TOOLS, "tool_choice": "none", **shaping}
    ]
