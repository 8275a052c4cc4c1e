"""Turns that wait for evaluation, a service that evaluates them, and a model server that answers as it is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from processors.evaluators.config import EvaluatorsConfig, ServerConfig
from processors.evaluators.service import run_evaluators
from processors.health import Health
from schemas.events import EventData, SessionClosed
from tests.processors.conversations import Recording, next_state, turn

UNFINISHED = "SELECT count(*) FROM evaluations WHERE state NOT IN ('done', 'failed')"


def answered(turn_id: str, reply: str = "Thanks.", state: dict[str, Any] | None = None, **more: Any) -> list[EventData]:
    """A session of one turn, what answered it, and its end."""
    session = f"session-{turn_id}"
    return [
        turn(turn_id, session, **more),
        next_state(f"next-{turn_id}", turn_id, session, **{"content": reply, **(state or {})}),
        SessionClosed(session_id=session),
    ]


def server(url: str, **more: Any) -> ServerConfig:
    return ServerConfig(**{"url": url, "model": "policy", "timeout_s": 60.0, "concurrency": 8, **more})


def evaluators(
    judge: str | None = None, teacher: str | None = None, *, timeout_s: float = 60.0, **more: Any
) -> EvaluatorsConfig:
    """A service with short waits."""
    fields: dict[str, Any] = {
        "worker": "tester",
        "judge": server(judge, timeout_s=timeout_s) if judge else None,
        "teacher": server(teacher, timeout_s=timeout_s) if teacher else None,
        "policy": server(teacher, timeout_s=timeout_s) if teacher else None,
        "concurrency": 8,
        "lease_s": 5.0,
        "backoff_base_s": 0.05,
        "poll_min_s": 0.01,
        "poll_max_s": 0.02,
    }
    return EvaluatorsConfig(**{**fields, **more})


@asynccontextmanager
async def serving(config: EvaluatorsConfig, recording: Recording) -> AsyncIterator[asyncio.Task[None]]:
    """The service while the block runs; a fault of it is raised at the end."""
    stop = asyncio.Event()
    task = asyncio.create_task(run_evaluators(config, recording.engine, stop, Health()))
    try:
        yield task
    finally:
        stop.set()
        await task


async def until(done: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until `done`."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.02)


async def evaluate(config: EvaluatorsConfig, recording: Recording, seconds: float = 60.0) -> None:
    """Run the service until every evaluation that it may take is final."""
    mine = UNFINISHED if config.runs is None else f"{UNFINISHED} AND run = ANY(:runs)"
    async with serving(config, recording) as task:
        await until(lambda: task.done() or recording.one(mine, runs=list(config.runs or ())) == (0,), seconds)


def balance(recording: Recording) -> dict[str, int]:
    """The ledger of the run "live", which must add up."""
    names = ("turns_seen", "trained", "ready", "pending", "dropped", "balance")
    row = recording.one(f"SELECT {', '.join(names)} FROM ledger WHERE run = 'live'")
    ledger = dict(zip(names, row, strict=True))
    assert ledger["balance"] == 0
    assert ledger["turns_seen"] == ledger["trained"] + ledger["ready"] + ledger["pending"] + ledger["dropped"]
    return ledger


Reply = Callable[[dict[str, Any]], Any]


class FakeServer:
    """Answers chat completions with what `reply` gives for a request's body: a text, a web response, or an awaitable
    of one. Only for faults and for answers that no real model gives on demand."""

    def __init__(self, reply: Reply, version: str | None = None) -> None:
        self.reply, self.version = reply, version
        self.requests: list[dict[str, Any]] = []
        self.url = ""

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        said = self.reply(body)
        if asyncio.iscoroutine(said):
            said = await said
        if isinstance(said, web.StreamResponse):
            return said
        text, finish = said if isinstance(said, tuple) else (said, "stop")
        return web.json_response({"choices": [{"message": {"content": text}, "finish_reason": finish}]})

    async def _version(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"weight_version": self.version}, status=200 if self.version else 404)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FakeServer]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/weight_info", self._version)
        async with TestServer(app) as started:
            self.url = str(started.make_url("")).rstrip("/")
            yield self
