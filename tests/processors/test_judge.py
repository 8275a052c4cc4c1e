"""LLM votes: asked each with its seed, kept, retried, added up; on a real model and on a faulty server."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from aiohttp import web

from processors.evaluators.inputs import NextState, Turn
from processors.evaluators.prompts import LABELS, clip, prompt_for
from processors.runs import ensure_run
from schemas.events import FeedbackGiven, NextStateKind, Response, ToolCall
from schemas.recipes import Recipe, recipe_named
from tests.processors.conversations import Recording
from tests.processors.evaluating import FakeServer, Reply, answered, balance, evaluate, evaluators

KINDS: list[NextStateKind] = ["user_reply", "tool_result", "terminal_output", "gui_change", "test_verdict"]
VOTES = "SELECT status, score, raw, explanation FROM votes ORDER BY vote"


def asking(**judge: Any) -> Recipe:
    return recipe_named("binary-rl", {"judge": {"code": False, **judge}})


def by_seed(*replies: Any) -> Reply:
    """The i-th reply for vote i, however the requests arrive."""
    return lambda body: replies[body["seed"]]


def status(code: int, text: str = "no") -> web.Response:
    return web.json_response({"error": {"message": text}}, status=code)


async def judged(url: str, reply: Reply, recipe: Recipe | None = None, **more: Any) -> tuple[Recording, FakeServer]:
    """One turn judged by a server that answers with `reply`."""
    recording = Recording(url, recipe or asking())
    recording.record(*answered("t", reply="You have to say that again."))
    fake = FakeServer(reply)
    async with fake.running():
        await evaluate(evaluators(judge=fake.url, **more), recording)
    balance(recording)
    return recording, fake


def reward(recording: Recording) -> tuple[Any, ...]:
    return recording.one("SELECT status, value, annotator_kind, votes_valid, votes_total FROM rewards")


@pytest.mark.stack
async def test_votes_are_asked_with_their_seeds_and_held_to_the_labels(migrated_database_url: str) -> None:
    recording, fake = await judged(migrated_database_url, by_seed("good", "bad", "good"))
    assert reward(recording) == ("scored", 1.0, "LLM", 3, 3)
    assert sorted(body["seed"] for body in fake.requests) == [0, 1, 2]
    for body in fake.requests:
        assert body["structured_outputs"] == {"choice": list(LABELS)}
        assert (body["temperature"], body["max_tokens"], body["model"]) == (0.6, 8, "policy")
        shown = body["messages"][1]["content"]
        assert "before t" in shown
        assert "answer t" in shown
        assert "You have to say that again." in shown
    assert recording.sample("t")[0] == "ready"
    (signal,) = recording.rows("SELECT convert_from(value, 'UTF8')::jsonb FROM outbox WHERE topic = 'signals'")
    assert signal[0]["value"] == 1.0
    assert signal[0]["signal"] == "reward"


@pytest.mark.stack
async def test_an_even_number_of_surviving_votes_is_a_tie_not_a_no(migrated_database_url: str) -> None:
    recording, _ = await judged(migrated_database_url, by_seed("good", "bad", status(400, "this one not")))
    assert reward(recording) == ("tie", 0.0, "LLM", 2, 3)
    assert recording.sample("t")[:2] == ("dropped", "no_signal")


@pytest.mark.stack
async def test_invalid_votes_keep_their_text_and_leave_no_reward(migrated_database_url: str) -> None:
    recording, fake = await judged(migrated_database_url, by_seed("7", "0.8x", '{"score": 0.'))
    assert reward(recording) == ("abstained", None, "LLM", 0, 3)
    assert [row[:3] for row in recording.rows(VOTES)] == [
        ("invalid", None, "7"),
        ("invalid", None, "0.8x"),
        ("invalid", None, '{"score": 0.'),
    ]
    assert recording.sample("t")[:2] == ("dropped", "reward_abstained")
    assert len(fake.requests) == 3, "an answer that was given is not asked for again"


@pytest.mark.stack
async def test_a_cut_answer_and_text_that_postgres_refuses(migrated_database_url: str) -> None:
    recording, _ = await judged(migrated_database_url, by_seed(("good", "length"), "a\x00b", None))
    assert reward(recording)[:2] == ("abstained", None)
    raws = [row[2] for row in recording.rows(VOTES)]
    assert raws == ["good", "a\ufffdb", ""]


def times(first: int, fault: Any, then: str) -> Reply:
    """`fault()` for the first `first` requests, then the text."""
    count = 0

    def reply(_: dict[str, Any]) -> Any:
        nonlocal count
        count += 1
        return fault() if count <= first else then

    return reply


async def cut_json() -> web.Response:
    return web.Response(text='{"choices": [{"message": {"content": "go', content_type="application/json")


async def slow() -> web.Response:
    await asyncio.sleep(3)
    return status(500)


@pytest.mark.stack
@pytest.mark.parametrize(
    "fault",
    [lambda: status(429), lambda: status(500), lambda: status(503), cut_json, slow],
    ids=["429", "500", "503", "cut", "slow"],
)
async def test_faults_that_pass_are_retried_and_given_answers_are_kept(
    migrated_database_url: str, fault: Any, request: pytest.FixtureRequest
) -> None:
    recording = Recording(migrated_database_url, asking())
    recording.record(*answered("t"))
    fake = FakeServer(times(2, fault, "bad"))
    async with fake.running():
        await evaluate(evaluators(judge=fake.url, timeout_s=0.5), recording)
    assert reward(recording) == ("scored", -1.0, "LLM", 3, 3)
    tries = 1 if "429" in request.node.name else 2  # a server without room is no fault of the work's
    assert recording.one("SELECT state, attempts, reason FROM evaluations") == ("done", tries, None)
    assert len(fake.requests) == 2 + 1 + 2, "two faults and one answer, then only what was missing"
    assert recording.one("SELECT count(*) FROM model_answers") == (3,)
    assert recording.sample("t")[0] == "ready"


@pytest.mark.stack
async def test_a_server_that_stays_away_fails_the_reward_and_not_the_run(migrated_database_url: str) -> None:
    recording = Recording(migrated_database_url, asking())
    recording.record(*answered("t"))
    await evaluate(evaluators(judge="http://127.0.0.1:9", max_attempts=3), recording)
    assert reward(recording) == ("failed", None, None, 0, 3)
    assert recording.rows("SELECT status, score FROM votes") == [("error", None)] * 3
    state, attempts, reason = recording.one("SELECT state, attempts, reason FROM evaluations")
    assert (state, attempts) == ("failed", 3)
    assert "127.0.0.1:9" in reason
    assert recording.sample("t")[:2] == ("dropped", "reward_failed")
    assert balance(recording)["dropped"] == 1


@pytest.mark.stack
async def test_a_refusal_is_not_repeated(migrated_database_url: str) -> None:
    recording, fake = await judged(migrated_database_url, lambda _: status(404, "no such model"))
    assert reward(recording)[:2] == ("failed", None)
    assert len(fake.requests) == 3
    assert "no such model" in recording.one("SELECT explanation FROM rewards")[0]


@pytest.mark.stack
async def test_a_server_without_structured_outputs_is_asked_for_the_marker(migrated_database_url: str) -> None:
    def reply(body: dict[str, Any]) -> Any:
        if "structured_outputs" in body:
            return status(400, "Unrecognized request argument supplied: structured_outputs")
        assert "VERDICT: good" in body["messages"][0]["content"]
        return "The user asks again.\nVERDICT: bad"

    recording, _ = await judged(migrated_database_url, reply)
    assert reward(recording) == ("scored", -1.0, "LLM", 3, 3)


@pytest.mark.stack
async def test_people_outrank_the_model_which_is_not_even_asked(migrated_database_url: str) -> None:
    recording = Recording(migrated_database_url, asking())
    fake = FakeServer(lambda _: "good")
    recording.record(FeedbackGiven(feedback_id="f", session_id="session-t", turn_id="t", thumbs="down"), *answered("t"))
    async with fake.running():
        await evaluate(evaluators(judge=fake.url), recording)
    assert reward(recording) == ("scored", -1.0, "HUMAN", 1, 1)
    assert fake.requests == []


@pytest.mark.stack
async def test_answers_are_kept_by_what_shaped_them(migrated_database_url: str) -> None:
    """Another run asks the same of the same turn and pays nothing; new weights of the judge are another judge."""
    recording = Recording(migrated_database_url, asking())
    with recording.engine.begin() as connection:
        ensure_run(connection, run="again", kind="live", policy="policy", recipe=asking())
    recording.record(*answered("t"))
    fake = FakeServer(lambda _: "good", version="3")
    async with fake.running():
        await evaluate(evaluators(judge=fake.url, concurrency=1), recording)
        assert len(fake.requests) == 3
        fake.version = "4"
        same = {"messages": [{"role": "user", "content": "before t"}], "response": Response(content="answer t")}
        recording.record(*answered("u", **same))
        await evaluate(evaluators(judge=fake.url, concurrency=1), recording)
    assert len(fake.requests) == 6
    assert recording.one("SELECT count(*) FROM rewards WHERE value = 1") == (4,)
    digests = recording.rows("SELECT DISTINCT answer_digest FROM votes ORDER BY 1")
    assert digests == recording.rows("SELECT answer_digest FROM model_answers ORDER BY 1")


@pytest.mark.stack
@pytest.mark.vllm
async def test_a_real_model_votes_with_declared_labels(migrated_database_url: str, vllm_server: str) -> None:
    recording = Recording(migrated_database_url, asking(votes=5, quorum=3))
    recording.record(*answered("liked", reply="Thanks, perfect!"))
    recording.record(*answered("call", state={"kind": "tool_result", "content": "error: no such file"}))
    await evaluate(evaluators(judge=vllm_server), recording, seconds=120)
    votes = recording.rows("SELECT turn_id, status, score, raw FROM votes")
    assert len(votes) == 10
    assert {vote[1] for vote in votes} == {"valid"}
    assert all(LABELS[raw] == score for _, _, score, raw in votes)
    assert recording.one("SELECT count(*) FROM rewards WHERE value IS NOT NULL AND votes_valid = 5") == (2,)
    assert recording.one("SELECT count(*) FROM model_answers WHERE purpose = 'reward'") == (10,)
    assert balance(recording)["pending"] == 0


def shown(next_states: tuple[NextState, ...], response: Response | None = None, characters: int = 4800) -> str:
    turn = Turn(
        turn_id="t",
        messages=[{"role": "user", "content": [{"type": "text", "text": "Costs $asked {x}?"}]}],
        tools=[],
        response=msgspec.to_builtins(response or Response(content="Yes.")),
        sampling={},
        token_source="engine",
        prompt_ids=b"",
        response_ids=b"",
        response_logprobs=b"",
    )
    return prompt_for("reward", turn, next_states, characters=characters).constrained[1]["content"]


def test_a_question_shows_everything_once_and_expands_nothing_in_it() -> None:
    calls = Response(tool_calls=[ToolCall(id="1", name="f", arguments='{"a": "$observed"}')])
    states = (
        NextState(kind="tool_result", content="first"),
        NextState(kind="tool_result", content="second", exit_code=2),
    )
    text = shown(states, calls)
    assert "Costs $asked {x}?" in text
    assert '[call f {"a": "$observed"}]' in text
    assert "first\n\n[exit code 2]\nsecond" in text


def test_each_kind_has_its_own_question_and_digest() -> None:
    digests = set()
    for purpose in ("reward", "hint"):
        for kind in KINDS:
            turn = Turn(
                turn_id="t",
                messages=[],
                tools=[],
                response={"content": "x"},
                sampling={},
                token_source="none",
                prompt_ids=b"",
                response_ids=b"",
                response_logprobs=b"",
            )
            state = NextState(kind=kind, content="y")
            prompt = prompt_for(purpose, turn, (state,), characters=300)  # type: ignore[arg-type]
            digests.add(prompt.digest)
            assert [message["role"] for message in prompt.constrained] == ["system", "user"]
    assert len(digests) == 10


def test_long_text_loses_its_middle_visibly() -> None:
    text = "a" * 500 + "b" * 500
    short = clip(text, 300)
    assert short.startswith("a" * 200)
    assert short.endswith("b" * 100)
    assert "700 characters left out" in short
    assert len(shown((NextState(kind="user_reply", content="z" * 9000),), characters=900)) < 1500
