"""How much a model server is sent at once: cut when it refuses, grown when it answers, left alone when it says so."""

from __future__ import annotations

import asyncio
import random
import time
from email.utils import formatdate
from typing import Any

import pytest
from aiohttp import web

from processors.evaluators.limit import AdaptiveLimit, LimitFigures, Paused
from processors.evaluators.service import run_evaluators
from processors.health import Health
from schemas.recipes import recipe_named
from tests.processors.conversations import Recording
from tests.processors.evaluating import UNFINISHED, FakeServer, answered, balance, evaluate, evaluators, until


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def limit(most: int = 8, **more: Any) -> tuple[AdaptiveLimit, Clock]:
    clock = Clock()
    return AdaptiveLimit(most, clock=clock, chance=random.Random(1), **more), clock


async def test_all_that_was_under_way_together_is_one_cut_and_a_round_of_answers_is_one_more() -> None:
    told: list[tuple[str | None, LimitFigures]] = []
    one, clock = limit(changed=lambda why, figures: told.append((why, figures)))
    began = clock.now
    clock.now += 2
    for _ in range(8):
        one.refused(began, "429", None)
    assert (one.at_once, one.figures().refused) == (4, 8)
    assert [why for why, _ in told] == ["429"]
    clock.now += 60
    one.answered(began)  # of before the cut: it says nothing about now
    assert one.at_once == 4
    answers = 0
    while one.at_once == 4:
        one.answered(clock.now)
        answers += 1
    assert 4 <= answers <= 5, "one more after a round"
    one.timed_out(clock.now, "slow")
    assert (one.at_once, one.figures().timed_out) == (2, 1)
    while one.at_once < 8:
        one.answered(clock.now)
    for _ in range(20):
        one.answered(clock.now)
    assert one.at_once == 8, "never beyond what was configured"
    assert [why for why, _ in told] == ["429", "slow", None]
    assert told[-1][1].in_words() == "8 of 8 at once, 8 refused, 1 timed out"


async def test_it_is_never_less_than_one() -> None:
    one, clock = limit(3)
    for _ in range(5):
        clock.now += 1
        one.timed_out(clock.now, "slow")
        assert one.at_once >= 1
    assert one.at_once == 1


async def test_refusals_in_a_row_wait_ever_longer_and_an_answer_ends_that() -> None:
    one, clock = limit()
    waits = []
    for _ in range(10):
        one.refused(clock.now, "429", None)
        waits.append(one.pause_s)
        clock.now += one.pause_s + 0.001
    for nth, wait in enumerate(waits):
        longest = min(60.0, 0.5 * 2.0**nth)
        assert longest / 2 <= wait <= longest + 1e-9
    one.answered(clock.now)
    one.refused(clock.now, "429", None)
    assert one.pause_s <= 0.5


async def test_what_the_server_says_is_kept_to_and_who_waits_is_sent_away() -> None:
    one, clock = limit(1)
    one.refused(clock.now, "429", 30.0)
    assert one.closed
    with pytest.raises(Paused) as paused:
        async with one.slot():
            pass
    assert paused.value.pause_s == 30.0
    clock.now += 30
    async with one.slot() as began:
        assert began == clock.now
        line = [asyncio.create_task(passed(one)) for _ in range(3)]
        await asyncio.sleep(0)
        assert one.figures().waiting == 3
        one.refused(began, "429", 20.0)
    assert [type(got) for got in await asyncio.gather(*line, return_exceptions=True)] == [Paused] * 3
    assert (one.figures().in_flight, one.figures().waiting) == (0, 0)
    one.refused(clock.now, "429", 1e9)
    assert one.pause_s == 3600.0


async def passed(one: AdaptiveLimit) -> float:
    async with one.slot() as began:
        return began


async def test_slots_go_round_in_order_and_a_cancelled_wait_costs_none() -> None:
    one, _ = limit(2)
    served: list[int] = []
    gate = asyncio.Event()

    async def work(number: int) -> None:
        async with one.slot():
            served.append(number)
            assert one.figures().in_flight <= 2
            await gate.wait()

    tasks = [asyncio.create_task(work(number)) for number in range(8)]
    await asyncio.sleep(0)
    assert served == [0, 1]
    tasks[3].cancel()
    tasks[0].cancel()  # its slot goes on
    await asyncio.sleep(0.01)
    assert served == [0, 1, 2]
    gate.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert served == [0, 1, 2, 4, 5, 6, 7]
    assert (one.figures().in_flight, one.figures().waiting) == (0, 0)


async def test_a_slot_that_is_handed_to_a_task_cancelled_in_the_same_moment_is_handed_on() -> None:
    one, _ = limit(1)
    async with one.slot():
        first, second = (asyncio.create_task(passed(one)) for _ in range(2))
        await asyncio.sleep(0)
    first.cancel()  # the slot was handed to it, and it has not run since
    assert await asyncio.wait_for(second, 60) >= 0
    assert first.cancelled()
    assert one.figures().in_flight == 0


def asking(votes: int = 1) -> Any:
    return recipe_named("binary-rl", {"judge": {"code": False, "votes": votes, "quorum": votes}})


def busy(status: int = 429, retry_after: str | None = None) -> web.Response:
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return web.json_response({"error": {"message": "busy"}}, status=status, headers=headers)


@pytest.mark.stack
@pytest.mark.parametrize("retry_after", ["1", "date", None, "soon"])
async def test_a_server_without_room_costs_no_attempt_and_is_left_alone_as_it_asks(
    migrated_database_url: str, retry_after: str | None
) -> None:
    """More refusals than an evaluation has attempts, and each turn is scored at its first."""
    recording = Recording(migrated_database_url, asking())
    for i in range(3):
        recording.record(*answered(f"t{i}"))
    moments: list[float] = []

    def reply(_: dict[str, Any]) -> Any:
        moments.append(time.time())
        if len(moments) <= 4:
            return busy(retry_after=formatdate(time.time() + 2, usegmt=True) if retry_after == "date" else retry_after)
        return "good"

    fake = FakeServer(reply)
    async with fake.running():
        await evaluate(evaluators(judge=fake.url, max_attempts=2, concurrency=3), recording)
    assert recording.rows("SELECT state, attempts FROM evaluations") == [("done", 1)] * 3
    assert recording.one("SELECT count(*), sum(value) FROM rewards") == (3, 3.0)
    assert balance(recording)["ready"] == 3
    if retry_after in ("1", "date"):
        assert moments[-1] - moments[0] >= 1.0, "nobody asks before the time that the server names"


@pytest.mark.stack
@pytest.mark.parametrize(("retry_after", "attempts"), [("0", 1), (None, 3)])
async def test_an_unavailable_server_costs_attempts_unless_it_says_when_to_come_back(
    migrated_database_url: str, retry_after: str | None, attempts: int
) -> None:
    recording = Recording(migrated_database_url, asking())
    recording.record(*answered("t"))
    asked = 0

    def reply(_: dict[str, Any]) -> Any:
        nonlocal asked
        asked += 1
        return busy(503, retry_after) if asked <= 2 else "good"

    fake = FakeServer(reply)
    async with fake.running():
        await evaluate(evaluators(judge=fake.url), recording)
    assert recording.one("SELECT state, attempts FROM evaluations") == ("done", attempts)


@pytest.mark.stack
async def test_while_a_server_takes_nothing_rules_go_on_and_the_rest_waits_in_the_queue(
    migrated_database_url: str,
) -> None:
    """For ten minutes the judge takes nothing: what rules decide is decided, the others are open again with their
    attempts, health says why, and the server is asked no more."""
    recipe = recipe_named(
        "binary-rl", {"judge": {"votes": 1, "quorum": 1, "rules": [{"pattern": "thanks", "score": 1}]}}
    )
    recording = Recording(migrated_database_url, recipe)
    for i in range(6):
        recording.record(*answered(f"asks{i}", reply="hm"))
    fake = FakeServer(lambda _: busy(retry_after="600"))
    health, stop = Health(), asyncio.Event()
    async with fake.running():
        config = evaluators(judge=fake.url, concurrency=2)
        service = asyncio.create_task(run_evaluators(config, recording.engine, stop, health))
        await until(lambda: recording.one("SELECT count(*) FROM evaluations WHERE available_at > now()") == (6,), 60.0)
        asked = len(fake.requests)
        for i in range(6):
            recording.record(*answered(f"rules{i}", reply="thanks"))
        await until(lambda: recording.one("SELECT count(*) FROM rewards") == (6,), 60.0)
        words = health.parts[f"server {fake.url}"]
        stop.set()
        await service
    assert len(fake.requests) == asked <= 3
    assert (
        recording.rows(
            "SELECT state, attempts, reason ~ 'no room|429|as the server asked', "
            "available_at > now() + interval '500 seconds' FROM evaluations WHERE turn_id LIKE 'asks%'"
        )
        == [("open", 0, True, True)] * 6
    )
    assert words[0] == "waiting"
    assert "of 8 at once" in words[1]
    assert "busy" in words[1]


@pytest.mark.stack
async def test_judge_and_teacher_at_one_address_share_its_limit(migrated_database_url: str) -> None:
    """Rewards and hints of many turns, and both servers' settings allow two: the one server never sees more."""
    recipe = recipe_named("combine", {"judge": {"code": False, "votes": 2, "quorum": 1}, "hint": {"votes": 2}})
    recording = Recording(migrated_database_url, recipe)
    for i in range(6):
        recording.record(*answered(f"t{i}"))
    now = most = 0

    async def reply(body: dict[str, Any]) -> str:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.03)
        now -= 1
        return "NONE" if "hint" in str(body["messages"]).lower() else "good"

    fake = FakeServer(reply)
    async with fake.running():
        config = evaluators(judge=fake.url, teacher=fake.url, concurrency=8)
        both = {
            name: type(one)(**{**vars(one), "concurrency": 2})
            for name in ("judge", "teacher", "policy")
            if (one := getattr(config, name))
        }
        stop = asyncio.Event()
        service = asyncio.create_task(
            run_evaluators(type(config)(**{**vars(config), **both}), recording.engine, stop, Health())
        )
        await until(
            lambda: service.done() or recording.one(f"{UNFINISHED} AND signal <> 'teacher'") == (0,),
            60.0,
        )
        stop.set()
        await service
    assert most == 2
