"""Hints: found by patterns, else asked of a model; the longest accepted one is chosen and opens its teacher."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from processors.evaluators.deciding import asks_a_model
from processors.evaluators.hint import hint_by_rules
from processors.evaluators.inputs import Answered, NextState
from schemas.recipes import HintSpec, Recipe, recipe_named
from tests.processors.conversations import Recording
from tests.processors.evaluating import FakeServer, Reply, answered, balance, evaluators, serving, until

PATTERN = r"(answer in one .*words\.)"


def after(*texts: str) -> Answered:
    states = tuple(NextState(kind="user_reply", content=text) for text in texts)
    return Answered(turn_id="t", session_id="s", next_states=states)


def test_a_pattern_s_group_is_the_hint() -> None:
    opinion = hint_by_rules(HintSpec(patterns=[PATTERN]), after("Too long. Answer in one or two words. Please."))
    assert opinion is not None
    assert (opinion.result.status, opinion.result.text) == ("accepted", "Answer in one or two words.")
    assert opinion.result.annotator_kind == "CODE"


def test_a_context_is_every_turn_s_hint_and_nobody_is_asked() -> None:
    recipe = recipe_named("opcd", {"hint": {"context": "Be brief.", "votes": 3, "patterns": [PATTERN]}})
    assert recipe.hint is not None
    opinion = hint_by_rules(recipe.hint, after("Too long. Answer in one or two words."))
    assert opinion is not None
    assert (opinion.result.status, opinion.result.text) == ("accepted", "Be brief.")
    assert (opinion.result.annotator_kind, opinion.votes) == ("CODE", ())
    assert not asks_a_model(recipe)


def test_the_whole_match_where_there_is_no_group() -> None:
    opinion = hint_by_rules(HintSpec(patterns=["be brief.*"]), after("Oh: be brief, will you"))
    assert opinion is not None
    assert opinion.result.text == "be brief, will you"


def test_a_short_hint_is_refused_and_the_search_goes_on() -> None:
    spec = HintSpec(patterns=["brief", "(say .*)"], votes=0, min_characters=10)
    opinion = hint_by_rules(spec, after("brief, and say it in Latin"))
    assert opinion is not None
    assert opinion.result.text == "say it in Latin"
    assert [vote.score for vote in opinion.votes] == [0, 1]


def test_no_match_asks_a_model_or_means_none() -> None:
    assert hint_by_rules(HintSpec(patterns=[PATTERN]), after("Thanks")) is None
    opinion = hint_by_rules(HintSpec(patterns=[PATTERN], votes=0), after("Thanks"))
    assert opinion is not None
    assert (opinion.result.status, opinion.result.text) == ("none", None)
    assert opinion.result.reason == "no pattern is found in the user's replies"


def test_only_a_user_s_reply_is_read() -> None:
    answered_by_tool = Answered(
        turn_id="t", session_id="s", next_states=(NextState(kind="tool_result", content="be brief, will you"),)
    )
    opinion = hint_by_rules(HintSpec(patterns=["be brief.*"], votes=0), answered_by_tool)
    assert opinion is not None
    assert opinion.result.status == "none"


def opd(**hint: Any) -> Recipe:
    return recipe_named("opd", {"hint": hint})


async def hinted(url: str, reply: Reply, seconds: float = 30.0) -> tuple[Recording, FakeServer]:
    """One turn whose hint is final; the teacher is never reached."""
    recording = Recording(url, opd())
    recording.record(*answered("t", reply="Hm."))
    fake = FakeServer(reply)
    async with fake.running():
        config = evaluators(judge=fake.url, teacher="http://127.0.0.1:9")
        async with serving(config, recording):
            final = "SELECT count(*) FROM evaluations WHERE signal = 'hint' AND state IN ('done', 'failed')"
            await until(lambda: recording.one(final) == (1,), seconds)
    balance(recording)
    return recording, fake


def hint(recording: Recording) -> tuple[Any, ...]:
    return recording.one("SELECT status, text, annotator_kind, votes_valid, votes_total FROM hints")


@pytest.mark.stack
async def test_the_longest_accepted_hint_is_chosen(migrated_database_url: str) -> None:
    replies = ["HINT: Be brief, please.", "NONE", "HINT: Name the source first, please."]
    recording, fake = await hinted(migrated_database_url, lambda body: replies[body["seed"]])
    assert hint(recording) == ("accepted", "Name the source first, please.", "LLM", 3, 3)
    assert recording.signals("t")["hint"] == "done"
    assert recording.signals("t")["teacher"] in ("open", "claimed")
    assert recording.rows("SELECT score FROM votes ORDER BY vote") == [(1,), (0,), (1,)]
    assert all(body["structured_outputs"]["regex"].startswith("(NONE|HINT") for body in fake.requests)


@pytest.mark.stack
async def test_equally_long_hints_go_to_the_earliest_vote(migrated_database_url: str) -> None:
    replies = ["NONE", "HINT: same length, one A", "HINT: same length, one B"]
    recording, _ = await hinted(migrated_database_url, lambda body: replies[body["seed"]])
    assert hint(recording)[1] == "same length, one A"


@pytest.mark.stack
async def test_none_leaves_the_teacher_nothing_to_do(migrated_database_url: str) -> None:
    recording, _ = await hinted(migrated_database_url, lambda body: "NONE")
    assert hint(recording) == ("none", None, "LLM", 3, 3)
    assert recording.one("SELECT state, reason FROM evaluations WHERE signal = 'teacher'") == ("done", "no hint: none")
    assert recording.sample("t")[:2] == ("dropped", "no_signal")


@pytest.mark.stack
async def test_no_valid_vote_is_a_failure_and_no_made_up_hint(migrated_database_url: str) -> None:
    recording, _ = await hinted(migrated_database_url, lambda body: "Perhaps it should be shorter.")
    assert hint(recording) == ("failed", None, None, 0, 3)
    assert [row[0] for row in recording.rows("SELECT raw FROM votes")] == ["Perhaps it should be shorter."] * 3
    assert recording.sample("t")[:2] == ("dropped", "hint_failed")


@pytest.mark.stack
async def test_an_unanswered_vote_is_asked_again_before_none_is_believed(migrated_database_url: str) -> None:
    asked: list[int] = []

    def reply(body: dict[str, Any]) -> Any:
        asked.append(body["seed"])
        if body["seed"] == 2:
            if asked.count(2) < 2:
                return web.json_response({"error": {"message": "busy"}}, status=503)
            return "HINT: Answer in one sentence."
        return "NONE"

    recording, _ = await hinted(migrated_database_url, reply)
    assert hint(recording)[:2] == ("accepted", "Answer in one sentence.")
    assert sorted(asked) == [0, 1, 2, 2]


@pytest.mark.stack
@pytest.mark.vllm
async def test_a_real_model_answers_in_the_declared_form(migrated_database_url: str, vllm_server: str) -> None:
    recording = Recording(migrated_database_url, opd(votes=4))
    recording.record(*answered("t", reply="Too long. Next time answer in one short sentence."))
    async with serving(evaluators(judge=vllm_server, teacher="http://127.0.0.1:9"), recording):
        await until(lambda: recording.one("SELECT count(*) FROM hints") == (1,), 120)
    votes = recording.rows("SELECT status, score, raw, explanation FROM votes")
    assert len(votes) == 4
    for status, score, raw, explanation in votes:
        if status == "valid":
            assert raw.strip() == "NONE" or raw.startswith("HINT: ")
            assert (score == 1) == (raw.startswith("HINT: ") and len(explanation) >= 10)
        else:
            assert (status, explanation) == ("invalid", "cut off at max_tokens")
    status, text = hint(recording)[:2]
    assert (status == "accepted") == any(vote[1] == 1 for vote in votes)
    assert text == max((vote[3] for vote in votes if vote[1] == 1), key=len, default=None)
