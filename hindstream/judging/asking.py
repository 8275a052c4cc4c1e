"""Asking judges about pairs: no database, nothing kept, every call and token counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp

from processors.evaluators.chat_requests import completion_body, completion_content
from processors.evaluators.config import ServerConfig
from processors.evaluators.judge import RewardResult, reward_by_answers, reward_by_rules
from processors.evaluators.llm_judge import Answer, in_either_form, read_answer, samplings
from processors.evaluators.prompts import prompt_for
from processors.evaluators.quality import Pair
from processors.evaluators.server import ModelServer, Overloaded, ServerFault
from schemas.recipes import JudgeSpec

_TRIES = 8
"""Of a vote that the server has no room for, each after the pause that it asks for."""


@dataclass(kw_only=True)
class Cost:
    """Of all pairs together. Tokens as the server counts them; None where it does not say."""

    calls: int = 0
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    seconds: float = 0.0

    def count(self, usage: Any) -> None:
        """One call, and what its answer says it used."""
        self.calls += 1
        said = usage if isinstance(usage, dict) else {}
        self.prompt_tokens = _sum(self.prompt_tokens, said.get("prompt_tokens"))
        self.completion_tokens = _sum(self.completion_tokens, said.get("completion_tokens"))


def by_code(spec: JudgeSpec, pairs: Sequence[Pair]) -> tuple[list[RewardResult], Cost]:
    """What code says, in the pairs' order; no model is asked.

    Raises:
        InvalidRecipe: `spec` names a rule that is not installed.
    """
    begun = time.perf_counter()
    alone = JudgeSpec(rules=spec.rules, functions=spec.functions, votes=0)
    results = []
    for pair in pairs:
        opinion = reward_by_rules(alone, pair.next_states())
        assert opinion is not None  # with no votes there is no model to wait for
        results.append(opinion.result)
    return results, Cost(seconds=time.perf_counter() - begun)


async def by_llm(
    spec: JudgeSpec, pairs: Sequence[Pair], server: ServerConfig, *, characters: int
) -> tuple[list[RewardResult], Cost]:
    """What a model says in `spec.votes` votes a pair, in the pairs' order; verdicts, exit codes and rules do not count,
    though the model is shown them. A fault of the server is a `failed` result and is not raised."""
    begun = time.perf_counter()
    alone = JudgeSpec(
        code=False, votes=spec.votes, quorum=spec.quorum, temperature=spec.temperature, max_tokens=spec.max_tokens
    )
    cost = Cost()
    async with aiohttp.ClientSession() as http:
        judge = ModelServer(server, http)

        async def one(pair: Pair) -> RewardResult:
            prompt = prompt_for("reward", pair.turn(), pair.next_states().next_states, characters=characters)

            async def vote(sampling: dict[str, Any]) -> Answer:
                for again in range(_TRIES - 1, -1, -1):
                    try:
                        return await in_either_form(judge, "reward", prompt, partial(_ask, judge, cost, sampling))
                    except Overloaded as busy:
                        if not again:
                            return Answer(fault=busy)
                        await asyncio.sleep(busy.pause_s)
                    except ServerFault as fault:
                        return Answer(fault=fault)
                raise AssertionError

            answers = await asyncio.gather(*(vote(sampling) for sampling in samplings(alone)))
            return reward_by_answers(alone, pair.next_states(), prompt.digest, judge.model, list(answers)).result

        results = await asyncio.gather(*(one(pair) for pair in pairs))
    cost.seconds = time.perf_counter() - begun
    return list(results), cost


async def _ask(
    judge: ModelServer,
    cost: Cost,
    sampling: dict[str, Any],
    messages: list[dict[str, str]],
    constraint: dict[str, Any] | None,
) -> Answer:
    plain = await judge.post("/v1/chat/completions", completion_body(judge.model, messages, sampling, constraint))
    cost.count(plain.get("usage"))
    return read_answer(completion_content(plain), "")


def _sum(so_far: int | None, more: Any) -> int | None:
    return so_far + more if so_far is not None and isinstance(more, int) else None
