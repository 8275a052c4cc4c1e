"""The work queue: one worker a claim, work of dead workers comes back, and nothing is written twice."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from processors.evaluators import queue
from processors.evaluators.completion import Outcome, complete
from processors.evaluators.judge import RewardResult
from processors.evaluators.queue import Claim
from processors.evaluators.servers import NotConfigured
from processors.evaluators.votes import Vote
from schemas.recipes import recipe_named
from tests.processors.conversations import Recording
from tests.processors.evaluating import FakeServer, answered, balance, evaluate, evaluators, serving, until

pytestmark = pytest.mark.stack

RULES = {"votes": 0, "rules": [{"pattern": "thanks", "score": 1}, {"pattern": "no", "score": -1}]}


@pytest.fixture
def rewards(migrated_database_url: str) -> Iterator[Recording]:
    """A run that only scores, by rules."""
    recording = Recording(migrated_database_url, recipe_named("binary-rl", {"judge": RULES}))
    yield recording
    recording.engine.dispose()


def claimed(recording: Recording, worker: str, n: int = 1, lease_s: float = 30.0) -> list[Claim]:
    with recording.engine.begin() as connection:
        return queue.claim(connection, signal="reward", worker=worker, n=n, lease_s=lease_s)


def scored(claim: Claim, value: float) -> Outcome:
    result = RewardResult(
        status="scored", value=value, annotator_kind="CODE", votes_valid=1, votes_total=1, explanation="test"
    )
    vote = Vote(status="valid", annotator_kind="CODE", annotator="test", score=int(value))
    return Outcome(claim=claim, session_id="s", result=result, votes=(vote,))


def completed(recording: Recording, *outcomes: Outcome) -> list[Claim]:
    with recording.engine.begin() as connection:
        return complete(connection, outcomes)


def test_workers_never_hold_the_same_evaluation(rewards: Recording) -> None:
    for i in range(40):
        rewards.record(*answered(f"t{i}"))
    with ThreadPoolExecutor(4) as pool:
        held = list(pool.map(lambda i: claimed(rewards, f"w{i}", n=7), range(8)))
    turns = [claim.turn_id for claims in held for claim in claims]
    assert len(turns) == len(set(turns))
    rest = claimed(rewards, "last", n=100)
    assert len(turns) + len(rest) == 40
    assert claimed(rewards, "nobody", n=100) == []


def test_the_oldest_comes_first_and_a_late_commit_is_not_missed(rewards: Recording) -> None:
    for name in ("a", "b", "c"):
        rewards.record(*answered(name))
    with rewards.engine.connect() as early:
        early.exec_driver_sql("SELECT 1 FROM evaluations WHERE turn_id = 'a' FOR UPDATE")
        assert [claim.turn_id for claim in claimed(rewards, "w")] == ["b"]
        early.rollback()
    assert [claim.turn_id for claim in claimed(rewards, "w", n=2)] == ["a", "c"]


def test_two_workers_one_stalls_and_nothing_is_written_twice(rewards: Recording) -> None:
    rewards.record(*answered("t"))
    (stalled,) = claimed(rewards, "stalled", lease_s=0.1)
    assert claimed(rewards, "quick") == []
    time.sleep(0.15)
    (quick,) = claimed(rewards, "quick")
    assert quick.attempt == 2
    assert completed(rewards, scored(stalled, -1.0)) == [stalled]
    assert rewards.rows("SELECT 1 FROM rewards UNION ALL SELECT 1 FROM votes UNION ALL SELECT 1 FROM outbox") == []
    assert rewards.sample("t")[0] == "pending"

    assert completed(rewards, scored(quick, 1.0)) == []
    assert completed(rewards, scored(stalled, -1.0)) == [stalled]
    assert completed(rewards, scored(quick, -1.0)) == [quick]
    assert rewards.one("SELECT value, votes_valid FROM rewards") == (1.0, 1)
    assert rewards.one("SELECT count(*) FROM votes") == (1,)
    assert rewards.one("SELECT count(*) FROM outbox WHERE topic = 'signals'") == (1,)
    assert balance(rewards)["ready"] == 1


def test_the_same_worker_s_earlier_claim_is_lost_too(rewards: Recording) -> None:
    rewards.record(*answered("t"))
    (first,) = claimed(rewards, "w", lease_s=0.05)
    time.sleep(0.1)
    (second,) = claimed(rewards, "w")
    assert completed(rewards, scored(first, -1.0), scored(second, 1.0)) == [first]
    assert rewards.one("SELECT value FROM rewards") == (1.0,)


def test_a_heartbeat_keeps_a_claim_and_tells_a_lost_one(rewards: Recording) -> None:
    rewards.record(*answered("a"))
    rewards.record(*answered("b"))
    kept, lost = claimed(rewards, "w", n=2, lease_s=0.3)
    with rewards.engine.begin() as connection:
        assert queue.extend(connection, [kept], 30.0) == {kept}
    time.sleep(0.35)
    (other,) = claimed(rewards, "other", n=5)
    assert other.turn_id == lost.turn_id
    with rewards.engine.begin() as connection:
        assert queue.extend(connection, [kept, lost], 30.0) == {kept}


def test_work_given_back_was_not_tried_and_a_retry_waits(rewards: Recording) -> None:
    rewards.record(*answered("t"))
    (claim,) = claimed(rewards, "w")
    with rewards.engine.begin() as connection:
        assert queue.release(connection, [claim]) == {claim}
    (again,) = claimed(rewards, "v")
    assert again.attempt == 1
    with rewards.engine.begin() as connection:
        assert not queue.retry(connection, claim, delay_s=0.0, reason="not mine any more")
        assert queue.retry(connection, again, delay_s=0.2, reason="429")
    assert claimed(rewards, "w") == []
    assert rewards.one("SELECT state, reason FROM evaluations") == ("open", "429")
    time.sleep(0.25)
    assert [claim.attempt for claim in claimed(rewards, "w")] == [2]


def test_backoff_doubles_is_bounded_and_scattered() -> None:
    chance = random.Random(1)
    waits = [[queue.backoff_s(n, base_s=1.0, max_s=20.0, chance=chance) for _ in range(50)] for n in range(1, 8)]
    for attempt, some in enumerate(waits, start=1):
        longest = min(20.0, 2.0 ** (attempt - 1))
        assert all(longest / 2 <= wait <= longest for wait in some)
        assert len(set(some)) == 50


async def test_a_service_takes_up_what_a_killed_one_held(rewards: Recording) -> None:
    for i in range(20):
        rewards.record(*answered(f"t{i}", reply="thanks" if i % 2 else "no"))
    held = claimed(rewards, "killed", n=9, lease_s=0.5)
    assert len(held) == 9
    await evaluate(evaluators(), rewards)
    assert rewards.one("SELECT count(*), sum(value) FROM rewards") == (20, 0.0)
    assert rewards.one("SELECT count(*) FROM evaluations WHERE state = 'done' AND attempts = 2") == (9,)
    assert balance(rewards)["ready"] == 20


async def test_an_evaluation_that_kills_its_workers_is_given_up(rewards: Recording) -> None:
    rewards.record(*answered("t", reply="thanks"))
    for _ in range(3):
        claimed(rewards, "killed", lease_s=0.01)
        await asyncio.sleep(0.03)
    await evaluate(evaluators(max_attempts=3), rewards)
    status, value, why = rewards.one("SELECT status, value, explanation FROM rewards")
    assert (status, value) == ("failed", None)
    assert "claimed 3 times" in why
    assert rewards.sample("t")[:2] == ("dropped", "reward_failed")
    assert balance(rewards)["dropped"] == 1


async def test_a_stop_returns_work_untried(migrated_database_url: str) -> None:
    recording = Recording(migrated_database_url, recipe_named("binary-rl", {"judge": {"code": False}}))
    for i in range(3):
        recording.record(*answered(f"t{i}"))
    fake = FakeServer(lambda body: asyncio.sleep(30, "good"))
    async with fake.running():
        async with serving(evaluators(judge=fake.url, lease_s=60.0), recording):
            await until(lambda: len(fake.requests) >= 3)
        assert recording.rows("SELECT state, attempts, worker FROM evaluations") == [("open", 0, None)] * 3
    fake.reply = lambda body: "bad"
    async with fake.running():
        await evaluate(evaluators(judge=fake.url, worker="next"), recording)
    assert recording.one("SELECT count(*), sum(value) FROM rewards") == (3, -3.0)
    assert balance(recording)["ready"] == 3


async def test_a_service_without_a_judge_refuses_a_run_that_needs_one(recording: Recording) -> None:
    recording.record(*answered("t"))
    with pytest.raises(NotConfigured, match="HINDSTREAM_JUDGE__URL"):
        await evaluate(evaluators(), recording)


async def test_claims_outlive_their_lease_while_the_model_thinks(migrated_database_url: str) -> None:
    recording = Recording(migrated_database_url, recipe_named("binary-rl", {"judge": {"code": False}}))
    recording.record(*answered("t"))
    fake = FakeServer(lambda body: asyncio.sleep(1.2, "good"))
    async with fake.running(), serving(evaluators(judge=fake.url, lease_s=0.4), recording):
        await until(lambda: recording.one("SELECT state FROM evaluations") == ("claimed",))
        for _ in range(8):
            await asyncio.sleep(0.1)
            assert await asyncio.to_thread(claimed, recording, "thief") == []
        await until(lambda: recording.one("SELECT state, attempts FROM evaluations") == ("done", 1))
    assert len(fake.requests) == 3


async def test_a_database_that_drops_every_connection_costs_nothing(migrated_database_url: str) -> None:
    recording = Recording(migrated_database_url, recipe_named("binary-rl", {"judge": {"code": False}}))
    for i in range(4):
        recording.record(*answered(f"t{i}"))
    fake = FakeServer(lambda body: asyncio.sleep(0.3, "good"))
    async with fake.running(), serving(evaluators(judge=fake.url, concurrency=2), recording) as task:
        for _ in range(6):
            await asyncio.sleep(0.15)
            await asyncio.to_thread(drop_connections, migrated_database_url)
        await until(lambda: task.done() or rewards_in(migrated_database_url) == 4)
    recording.engine.dispose()
    assert recording.one("SELECT count(*), sum(value) FROM rewards") == (4, 4.0)
    assert recording.one("SELECT count(*) FROM votes") == (12,)
    assert balance(recording)["ready"] == 4


def drop_connections(url: str) -> None:
    """As a restart of the database does."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def rewards_in(url: str) -> int:
    """Counted over a connection of its own, which was not dropped."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        (count,) = connection.execute("SELECT count(*) FROM rewards").fetchone() or (0,)
        return int(count)


async def test_a_result_that_the_database_refuses_fails_alone(rewards: Recording) -> None:
    for i in range(5):
        rewards.record(*answered(f"t{i}", reply="thanks"))
    with rewards.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE rewards ADD CONSTRAINT t3 CHECK (turn_id <> 't3' OR status = 'failed')")
    await evaluate(evaluators(), rewards)
    assert rewards.rows("SELECT turn_id, value FROM rewards WHERE status = 'scored' ORDER BY 1") == [
        (f"t{i}", 1.0) for i in (0, 1, 2, 4)
    ]
    status, why = rewards.one("SELECT status, explanation FROM rewards WHERE turn_id = 't3'")
    assert status == "failed"
    assert "the database refused the result" in why
    assert balance(rewards)["ready"] == 4
