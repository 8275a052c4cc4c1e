"""A whole answer that is only text is put into the server's own form, which the server is asked for once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from hindstream.cli.topics import ensure_topics
from schemas.events import TurnRecorded
from tests.producers.gateway.logs import events_of
from tests.producers.gateway.upstreams import COMPLETION, gateway, say, serving

pytestmark = pytest.mark.stack
CHAT, GENERATE = "/v1/chat/completions", "/inference/v1/generate"
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
FIELDS = {"service_tier": None, "made_up_by_this_version": 1}


class Server:
    """A vLLM whose answers are "one", "two" and so on; `asked` has the paths in order."""

    def __init__(self, message: dict[str, Any] | None = None, texts: bool = True) -> None:
        self.asked: list[str] = []
        self._message, self._texts, self._answers = message or {}, texts, 0

    def routes(self) -> dict[str, Any]:
        return {f"{CHAT}/render": self.render, GENERATE: self.generate, f"{CHAT}/derender": self.derender}

    async def render(self, request: web.Request) -> web.Response:
        self.asked.append("render")
        return web.json_response(
            {"token_ids": [1, 2], "sampling_params": {}, "request_id": f"chatcmpl-{len(self.asked)}"}
        )

    async def generate(self, request: web.Request) -> web.Response:
        self.asked.append("generate")
        body = await request.json()
        choice = {
            "index": 0,
            "token_ids": [5 + self._answers, 6],
            "finish_reason": "stop",
            "stop_reason": None,
            "logprobs": {"content": [{"token_id": token, "logprob": -0.5} for token in (5 + self._answers, 6)]},
            "weight_versions": [{"version": "3", "start": 0, "end": 2}],
        }
        if self._texts and body.get("output_mode") == "text":
            choice["text"] = self._text()
        self._answers += 1
        return web.json_response({"choices": [choice]})

    async def derender(self, request: web.Request) -> web.Response:
        self.asked.append("derender")
        self._answers -= 1
        message = {"role": "assistant", "content": self._text(), "tool_calls": [], **self._message}
        self._answers += 1
        choice = {"index": 0, "message": message, "finish_reason": "stop", "stop_reason": None, "logprobs": None}
        return web.json_response({**COMPLETION, "model": "m", "created": 1, "choices": [choice], **FIELDS})

    def _text(self) -> str:
        return ("one", "two", "three", "four")[self._answers]


async def test_the_form_is_asked_for_once_and_each_answer_is_its_own(tmp_path: Path, broker: str) -> None:
    ensure_topics(broker, 8)
    server, name = Server(), f"forms-{tmp_path.name}"
    async with serving(server.routes()) as upstream, gateway(tmp_path, upstream, broker) as address:
        told = [(await say(address, BODY, {"X-Session-Id": name}))[1] for _ in range(3)]
    assert server.asked == ["render", "generate", "derender", *["render", "generate"] * 2]
    assert [one["choices"][0]["message"]["content"] for one in told] == ["one", "two", "three"]
    assert len({one["id"] for one in told}) == 3
    same = [{key: one[key] for key in (*FIELDS, "object", "model", "usage")} for one in told]
    assert same[0] == same[1] == same[2]
    turns = [event.data for event in events_of(broker, name, 3)]
    assert all(isinstance(turn, TurnRecorded) for turn in turns)
    recorded = {turn.response.content: (turn.tokens.response_ids, turn.policy.spans[0].version) for turn in turns}  # type: ignore[union-attr]
    assert recorded == {"one": ([5, 6], 3), "two": ([6, 6], 3), "three": ([7, 6], 3)}


@pytest.mark.parametrize(
    ("server", "more"),
    [
        (Server(message={"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}), {}),
        (Server(), {"logprobs": True}),
        (Server(), {"add_generation_prompt": False}),
        (Server(texts=False), {}),
    ],
)
async def test_the_server_is_asked_where_its_form_is_not_all(
    tmp_path: Path, broker: str, server: Server, more: dict[str, Any]
) -> None:
    async with serving(server.routes()) as upstream, gateway(tmp_path, upstream, broker) as address:
        for _ in range(2):
            status, told, _ = await say(address, {**BODY, **more})
            assert status == 200
    assert server.asked == ["render", "generate", "derender"] * 2
    assert told["choices"][0]["message"]["content"] == "two"
