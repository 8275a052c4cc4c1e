"""Of several accepted hints the teacher says which is best: a scripted server scores each as the test wants."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from processors.evaluators.choosing import overlap
from processors.evaluators.queue import Claim
from processors.evaluators.recorded import Models, from_records
from schemas.arrays import pack_ids
from schemas.events import Tokens
from schemas.recipes import recipe_named
from tests.processors.conversations import Recording
from tests.processors.evaluating import FakeServer, answered, balance, evaluate, evaluators

HINTS = {
    "Name the river first.": ([10, 11, 12, 99], -3.0),
    "Answer in five words.": ([10, 97, 98, 99], -0.25),
    "Look at the map of all the rivers once more.": ([10, 11, 98, 99], -2.0),
}
"""A hint: the teacher's four likeliest tokens under it in each place, and the log-prob of each response token."""
OWN = ([10, 11, 12, 13], -1.0)
MESSAGES = [{"role": "user", "content": "Where does the Spree end?"}]
RESPONSE = [3, 4, 5]


def rendered(messages: list[dict[str, Any]]) -> list[int]:
    """One token a character, and one that ends the prompt."""
    return [*map(ord, "\n".join(message["content"] for message in messages)), 2]


class Teacher(FakeServer):
    """Renders chats and scores prompts too; `refuses`: hints that are too long for it."""

    def __init__(self, refuses: tuple[str, ...] = ()) -> None:
        hints = list(HINTS)
        super().__init__(lambda body: f"HINT: {hints[body['seed']]}")
        self.refuses = refuses
        self.scored: list[str | None] = []

    async def _render(self, request: web.Request) -> web.Response:
        return web.json_response({"token_ids": rendered((await request.json())["messages"])})

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        ids = body["token_ids"]
        if "prompt_logprob_token_ids" in body["sampling_params"]:  # as vLLM's older runner says it
            return web.json_response({"error": {"message": "requires the V2 model runner"}}, status=400)
        prompt = "".join(map(chr, ids[: -len(RESPONSE)]))
        hint = next((hint for hint in HINTS if hint in prompt), None)
        self.scored.append(hint)
        if hint in self.refuses:
            return web.json_response({"error": {"message": "too long"}}, status=400)
        top, logprob = HINTS[hint] if hint else OWN
        ranks = {str(token): {"logprob": -float(rank), "rank": rank} for rank, token in enumerate(top, 1)}
        places = [{**ranks, str(token): {"logprob": logprob, "rank": 50}} for token in ids]
        return web.json_response({"prompt_logprobs": [None, *places[1:]], "choices": [{}]})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Teacher]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/chat/completions/render", self._render)
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_get("/weight_info", self._version)
        async with TestServer(app) as started:
            self.url = str(started.make_url("")).rstrip("/")
            yield self


async def chosen(url: str, teacher: Teacher, **hint: Any) -> Recording:
    """A turn whose three hints are all accepted, when everything is final."""
    recording = Recording(url, recipe_named("opd", {"hint": {"votes": 3, **hint}}))
    tokens = Tokens(
        source="engine", prompt_ids=rendered(MESSAGES), response_ids=RESPONSE, response_logprobs=[-1.0, -1.0, -1.0]
    )
    recording.record(*answered("t", reply="Hm.", messages=MESSAGES, tokens=tokens))
    async with teacher.running():
        await evaluate(evaluators(judge=teacher.url, teacher=teacher.url), recording)
    balance(recording)
    return recording


@pytest.mark.stack
@pytest.mark.parametrize(
    ("select", "text", "reason", "asked"),
    [
        ("longest", "Look at the map of all the rivers once more.", None, 1),
        ("gain", "Answer in five words.", "gain 0.7500 nats a token, the best of 3", 3),
        ("overlap", "Name the river first.", "overlap 0.7500, the best of 3", 4),
    ],
)
async def test_each_rule_takes_its_own_hint_and_nothing_is_asked_twice(
    migrated_database_url: str, select: str, text: str, reason: str | None, asked: int
) -> None:
    teacher = Teacher()
    recording = await chosen(migrated_database_url, teacher, select=select)
    assert recording.one("SELECT status, text, reason, votes_valid FROM hints") == ("accepted", text, reason, 3)
    (gain,) = recording.one("SELECT mean_gain FROM teacher_scores")
    assert gain == pytest.approx(HINTS[text][1] + 1.0)
    assert len(teacher.scored) == asked, "the teacher's own evaluation takes the answer that is kept"
    assert recording.sample("t")[0] == "ready"


@pytest.mark.stack
async def test_a_hint_that_cannot_be_scored_is_passed_over(migrated_database_url: str) -> None:
    teacher = Teacher(refuses=("Answer in five words.",))
    recording = await chosen(migrated_database_url, teacher, select="gain")
    text, reason = recording.one("SELECT text, reason FROM hints")
    assert (text, reason) == (
        "Look at the map of all the rivers once more.",
        "gain -1.0000 nats a token, the best of 2",
    )


@pytest.mark.stack
async def test_where_none_can_be_scored_the_longest_is_taken_and_the_reason_is_kept(migrated_database_url: str) -> None:
    recording = await chosen(migrated_database_url, Teacher(refuses=tuple(HINTS)), select="overlap")
    text, reason = recording.one("SELECT text, reason FROM hints")
    assert text == "Look at the map of all the rivers once more."
    assert reason.startswith("the longest: the teacher scored none (refused: ")
    assert recording.sample("t")[:2] == ("dropped", "hint_failed")


@pytest.mark.stack
async def test_a_replay_leaves_the_choice_among_recorded_hints_to_the_teacher(migrated_database_url: str) -> None:
    """What is recorded tells which hint is the longest, but not which one gains most."""
    recording = await chosen(migrated_database_url, Teacher(), select="gain")
    claims = [
        Claim(run="live", turn_id="t", signal=signal, worker="w", attempt=1, replayed=True)
        for signal in ("hint", "teacher")
    ]
    models = Models(judge="policy", teacher="policy", characters=4800, signals=("reward", "hint", "teacher"))
    for select, told in (("gain", []), ("longest", ["hint"])):
        recipe = recipe_named("opd", {"hint": {"votes": 3, "select": select}})
        with recording.engine.connect() as connection:
            outcomes = from_records(connection, claims, recipe, models)
        assert [outcome.claim.signal for outcome in outcomes] == told


def test_overlap_is_the_share_of_the_teacher_s_tokens_that_are_the_policy_s_in_any_order() -> None:
    teacher, policy = pack_ids([1, 2, 3, 4, 5, 6, 7, 8]), pack_ids([4, 3, 9, 9, 5, 6, 7, 8])
    assert overlap(teacher, policy, 4) == pytest.approx((0.5 + 1.0) / 2)
    assert overlap(teacher, teacher, 4) == 1.0
