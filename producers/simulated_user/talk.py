"""Talking through the gateway like any client of an OpenAI-compatible server: HTTP and nothing else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from producers.simulated_user.questions import QuestionStream
from producers.simulated_user.taste import REACTIONS, Opinion, opinion

_REQUEST_TIMEOUT_S = 120.0
"""Far above the slowest answer seen on two busy cores (about 20 s), so that only a dead server ends a talk."""

_REACTION_TOKENS = 8
"""What the policy says to a reaction is a side turn that nobody reads: keep it cheap."""

_PATIENCE_S = 0.1
"""Between two looks whether he may ask on: short beside the seconds that an answer takes."""


@dataclass(frozen=True, kw_only=True)
class Answered:
    """One question with its answer and what the user thought of it."""

    question: str
    answer: str
    opinion: Opinion
    session_id: str
    turn_id: str


@dataclass(frozen=True, kw_only=True)
class UserConfig:
    """Where the user talks and how. `seed` fixes the order of questions and each request's sampling seed."""

    gateway_url: str
    model: str
    seed: int
    temperature: float = 1.0
    max_tokens: int = 80
    concurrency: int = 8


class GatewayRefused(RuntimeError):
    """The gateway answered with an error: status and text."""


async def ask(
    http: aiohttp.ClientSession,
    config: UserConfig,
    question: str,
    *,
    session_id: str,
    side: bool,
    seed: int,
    temperature: float,
) -> Answered:
    """Ask one question and form an opinion.

    Raises:
        GatewayRefused: the gateway did not answer with 200.
    """
    body = {
        "model": config.model,
        "messages": [{"role": "user", "content": question}],
        "temperature": temperature,
        "max_tokens": config.max_tokens,
        "seed": seed,
    }
    headers = {"X-Session-Id": session_id, "X-Turn-Type": "side" if side else "main"}
    if side:
        headers["X-Session-Done"] = "true"
    answer, turn_id = await _post(http, config.gateway_url, body, headers)
    return Answered(
        question=question,
        answer=answer,
        opinion=opinion(question, answer),
        session_id=session_id,
        turn_id=turn_id,
    )


async def react(http: aiohttp.ClientSession, config: UserConfig, answered: Answered) -> None:
    """Say what he thought: the next request of the session, which the pipeline reads as the answer's next state."""
    body = {
        "model": config.model,
        "messages": [
            {"role": "user", "content": answered.question},
            {"role": "assistant", "content": answered.answer},
            {"role": "user", "content": REACTIONS[answered.opinion]},
        ],
        "max_tokens": _REACTION_TOKENS,
    }
    headers = {"X-Session-Id": answered.session_id, "X-Turn-Type": "side", "X-Session-Done": "true"}
    await _post(http, config.gateway_url, body, headers)


async def _post(
    http: aiohttp.ClientSession, url: str, body: dict[str, Any], headers: dict[str, str]
) -> tuple[str, str]:
    async with http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
        if response.status != 200:
            raise GatewayRefused(f"gateway answered {response.status}: {(await response.text())[:300]}")
        plain = await response.json()
        return plain["choices"][0]["message"]["content"] or "", response.headers.get("X-Turn-Id", "")


async def talk(config: UserConfig, prefix: str, stop: asyncio.Event, may_ask: Callable[[int], bool]) -> None:
    """Ask training questions and react to each answer, `concurrency` sessions at once, until `stop` is set.

    A new question waits while `may_ask(questions asked so far)` is False. Without that a fast user runs ahead of a
    slow learner, and what is learned from are answers of weights long gone.
    """
    questions, seeds = QuestionStream(config.seed), random.Random(config.seed)
    count = 0

    async def one_after_another(http: aiohttp.ClientSession) -> None:
        nonlocal count
        while not stop.is_set():
            if not may_ask(count):
                await asyncio.sleep(_PATIENCE_S)
                continue
            count += 1
            answered = await ask(
                http,
                config,
                questions.next(),
                session_id=f"{prefix}-{count}",
                side=False,
                seed=seeds.randrange(2**31),
                temperature=config.temperature,
            )
            await react(http, config, answered)

    async with _client() as http, asyncio.TaskGroup() as group:
        for _ in range(config.concurrency):
            group.create_task(one_after_another(http))


async def survey(config: UserConfig, prefix: str, questions: Sequence[str], *, temperature: float) -> list[Answered]:
    """Ask each of `questions` once as a side turn (recorded, never trained), in order, with fixed seeds."""
    limit = asyncio.Semaphore(config.concurrency)

    async def one(http: aiohttp.ClientSession, place: int, question: str) -> Answered:
        async with limit:
            return await ask(
                http,
                config,
                question,
                session_id=f"{prefix}-{place}",
                side=True,
                seed=config.seed * 1_000_003 + place,
                temperature=temperature,
            )

    async with _client() as http:
        return list(await asyncio.gather(*(one(http, place, q) for place, q in enumerate(questions))))


def _client() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT_S))
