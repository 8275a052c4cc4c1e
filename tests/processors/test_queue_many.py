"""A hundred workers on one database, workers that are stopped in the middle, and the same question asked by several."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.queue import fill
from processors.evaluators import queue
from processors.evaluators.once import asked_once, known_or_begin
from processors.runs import ensure_run
from processors.transactions import Transactions
from schemas.database import make_engine
from schemas.recipes import Recipe, recipe_named
from tests.processors.conversations import Recording
from tests.processors.evaluating import FakeServer, answered, balance, evaluate, evaluators, serving, until

pytestmark = pytest.mark.stack

ROOT = Path(__file__).parents[2]
WORKERS = 100


def asking(votes: int = 1) -> Recipe:
    return recipe_named("binary-rl", {"judge": {"code": False, "votes": votes, "quorum": votes}})


def test_a_hundred_workers_claim_each_evaluation_once_and_read_only_indexes(migrated_database_url: str) -> None:
    """Beside 100,000 finished ones. Each worker has a connection of its own, and all begin together; nobody stands
    before an empty queue while there is work, and no claim reads the table from end to end."""
    waiting = 20 * WORKERS
    engine = make_engine(migrated_database_url, pool_size=WORKERS, application_name="test")
    with engine.begin() as connection:
        fill(connection, finished=100_000, waiting=waiting)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE evaluations")
    engine.dispose()  # what a backend counted is there for all when it ends
    recording = Recording(migrated_database_url)
    until_counted(recording, "vacuum_count", 1)
    scans = scanned(recording, "seq_scan")
    claims: Counter[str] = Counter()
    rounds: list[list[str]] = [[] for _ in range(WORKERS)]
    starved: list[int] = []
    start, lock = threading.Barrier(WORKERS), threading.Lock()

    def work(number: int) -> None:
        with engine.connect() as connection:
            start.wait()
            while True:
                with connection.begin():
                    got = queue.claim(connection, signal="reward", worker=f"w{number}", n=2, lease_s=600.0)
                with lock:
                    claims.update(claim.turn_id for claim in got)
                    if not got:
                        starved.append(claims.total())
                        return
                rounds[number] += [claim.turn_id for claim in got]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert claims.total() == len(claims) == waiting
    assert all(rounds), "every worker got some"
    # Who finds nothing finds it only when the rest is in the hands of others: at most two each of a claim under way.
    assert min(starved) >= waiting - 2 * WORKERS
    engine.dispose()
    until_counted(recording, "idx_scan", waiting // 2)
    assert scanned(recording, "seq_scan") == scans
    assert recording.one(
        "SELECT count(*), count(DISTINCT worker) FROM evaluations WHERE state = 'claimed' AND attempts = 1"
    ) == (waiting, WORKERS)


def scanned(recording: Recording, what: str) -> int:
    (count,) = recording.one(f"SELECT {what} FROM pg_stat_user_tables WHERE relname = 'evaluations'")
    return int(count)


def until_counted(recording: Recording, what: str, least: int) -> None:
    """Postgres tells its counts some time after."""
    deadline = time.monotonic() + 60
    while scanned(recording, what) < least:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_claim_reads_neither_what_is_finished_nor_what_is_postponed_or_held(migrated_database_url: str) -> None:
    """Its plan, with 100,000 finished, 5,000 postponed and 5,000 held ones before the first that is due."""
    engine = make_engine(migrated_database_url, pool_size=1, application_name="test")
    with engine.begin() as connection:
        fill(connection, finished=100_000, waiting=10_010)
        connection.exec_driver_sql(
            "UPDATE evaluations SET available_at = now() + interval '1 hour' WHERE state = 'open' AND turn_id IN "
            "(SELECT turn_id FROM evaluations WHERE state = 'open' ORDER BY created_at, turn_id LIMIT 5000)"
        )
        assert len(queue.claim(connection, signal="reward", worker="other", n=5000, lease_s=600.0)) == 5000
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE evaluations")
    with engine.begin() as connection:
        (plan,) = connection.exec_driver_sql(
            f"EXPLAIN (ANALYZE, FORMAT JSON) {queue.CLAIM}",
            {"signal": "reward", "worker": "w", "n": 4, "lease_s": 60.0, "runs": None},
        ).scalar_one()
    nodes = list(walk(plan["Plan"]))
    reads = [node for node in nodes if node.get("Relation Name") == "evaluations" and "Scan" in node["Node Type"]]
    assert {node["Node Type"] for node in reads} <= {"Index Scan", "Index Only Scan"}
    assert {"ix_evaluations_open", "ix_evaluations_claimed"} <= {node["Index Name"] for node in reads}
    for node in reads:
        assert node["Actual Rows"] * node["Actual Loops"] <= 4
        assert node.get("Rows Removed by Filter", 0) == 0
    engine.dispose()


def walk(node: dict[str, Any]) -> Any:
    yield node
    for below in node.get("Plans", ()):
        yield from walk(below)


async def test_postponed_and_retried_work_is_not_overtaken_for_ever(migrated_database_url: str) -> None:
    """What was tried before comes in the order in which it became due, among fresh work."""
    recording = Recording(migrated_database_url, asking())
    recording.record(*answered("tried"))
    with recording.engine.begin() as connection:
        claims = queue.claim(connection, signal="reward", worker="w", n=1, lease_s=60.0)
        assert queue.postpone(connection, claims, delay_s=0.0, reason="429") == set(claims)
    for i in range(3):
        recording.record(*answered(f"fresh{i}"))
    with recording.engine.begin() as connection:
        (first,) = queue.claim(connection, signal="reward", worker="w", n=1, lease_s=60.0)
    assert (first.turn_id, first.attempt) == ("tried", 1)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL])
async def test_a_worker_that_is_stopped_in_the_middle_loses_and_doubles_nothing(
    migrated_database_url: str, tmp_path: Path, stop: signal.Signals
) -> None:
    """After SIGTERM its work is open again at once and untried; after SIGKILL when its lease ends. What it heard is
    kept, so the next worker pays only for the rest."""
    recording = Recording(migrated_database_url, asking())
    for i in range(12):
        recording.record(*answered(f"t{i}"))
    held = asyncio.Event()

    async def reply(_: dict[str, Any]) -> str:
        if len(fake.requests) > 4:
            held.set()
            await asyncio.sleep(300)
        return "good"

    fake = FakeServer(reply)
    async with fake.running():
        process = start_worker(migrated_database_url, fake.url, tmp_path)
        try:
            await asyncio.wait_for(held.wait(), 90)
            await until(lambda: recording.one("SELECT count(*) FROM rewards") == (4,), 60.0)
            process.send_signal(stop)
            code = await asyncio.to_thread(process.wait, 60)
        finally:
            process.kill()
        if stop == signal.SIGTERM:
            assert code == 0
            assert recording.rows(
                "SELECT state, attempts, worker, count(*) FROM evaluations GROUP BY 1, 2, 3 ORDER BY 1"
            ) == [("done", 1, None, 4), ("open", 0, None, 8)]
            assert recording.one("SELECT count(*) FROM open_questions") == (0,), "its questions are anybody's"
        else:  # fifteen seconds later
            with recording.engine.begin() as connection:
                connection.exec_driver_sql("UPDATE open_questions SET lease_until = now()")
    fake.requests.clear()
    fake.reply = lambda _: "bad"
    async with fake.running():
        await evaluate(evaluators(judge=fake.url, worker="next"), recording, 90.0)
    assert recording.one("SELECT count(*), sum(value) FROM rewards") == (12, 4.0 - 8.0)
    assert recording.one("SELECT count(*) FROM votes") == (12,)
    assert len(fake.requests) == 8
    assert balance(recording)["ready"] == 12


def start_worker(url: str, judge: str, home: Path) -> subprocess.Popen[bytes]:
    """A process with the role evaluators, as anybody starts it."""
    recipe = home / "recipe.json"
    recipe.write_text(json.dumps(msgspec.to_builtins(asking())))
    settings = {
        "HOME": str(home),
        "DATABASE__URL": url.replace("+psycopg", ""),
        "KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "RUN__RECIPE": str(recipe),
        "WORKER__LEASE_S": "3",
        "WORKER__CONCURRENCY": "8",
        **{f"{role}__URL": judge for role in ("JUDGE", "TEACHER", "POLICY")},
    }
    with (home / "worker.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "hindstream", "worker", "run", "--roles", "evaluators"],
            cwd=ROOT,
            env={**os.environ, **{f"HINDSTREAM_{name}": value for name, value in settings.items()}},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


async def test_two_runs_that_ask_the_same_at_the_same_time_pay_once(migrated_database_url: str) -> None:
    """Two services as on two machines, each with one run, and a judge that is slow enough for both to ask."""
    recording = Recording(migrated_database_url, asking(votes=3))
    with recording.engine.begin() as connection:
        ensure_run(connection, run="again", kind="live", policy="policy", recipe=asking(votes=3))
    for i in range(3):
        recording.record(*answered(f"t{i}"))

    async def reply(_: dict[str, Any]) -> str:
        await asyncio.sleep(0.4)
        return "good"

    fake = FakeServer(reply)
    done = "SELECT count(*) FROM rewards"
    async with (
        fake.running(),
        serving(evaluators(judge=fake.url, worker="a", runs=("live",), concurrency=9), recording),
        serving(evaluators(judge=fake.url, worker="b", runs=("again",), concurrency=9), recording),
    ):
        await until(lambda: recording.one(done) == (6,), 60.0)
    assert len(fake.requests) == 9, "three turns, three votes"
    assert recording.one("SELECT count(*), count(DISTINCT answer_digest) FROM votes") == (18, 9)
    assert recording.one("SELECT count(*) FROM open_questions") == (0,)


async def test_the_question_of_a_killed_asker_is_asked_when_its_lease_ends(migrated_database_url: str) -> None:
    engine = make_engine(migrated_database_url, pool_size=4, application_name="test")
    transactions = Transactions(engine, threads=3, name="test")
    asked: list[str] = []

    async def once(name: str, lease_s: float = 30.0, seconds: float = 0.0) -> dict[str, Any]:
        async def digest_now() -> str:
            return "d"

        async def ask(digest: str) -> tuple[dict[str, Any], str]:
            asked.append(name)
            await asyncio.sleep(seconds)
            return {"by": name}, digest

        answer, _ = await asked_once(
            transactions, digest_now, ask, question="q", purpose="reward", model="m", lease_s=lease_s
        )
        return answer

    assert await transactions.run(known_or_begin, "d", "killed", 1.0) == "ask"
    assert await transactions.run(known_or_begin, "d", "other", 1.0) is None
    # The one who asks then takes far longer than its lease, and prolongs it: nobody asks beside it.
    answers = await asyncio.gather(*(once(f"w{i}", lease_s=0.6, seconds=2.0) for i in range(6)))
    assert len(asked) == 1
    assert answers == [{"by": asked[0]}] * 6
    assert await once("late") == {"by": asked[0]}
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM open_questions").scalar_one() == 0
    await asyncio.to_thread(transactions.close)
    engine.dispose()


async def test_a_question_that_failed_or_was_given_up_is_anybodys_at_once(migrated_database_url: str) -> None:
    engine = make_engine(migrated_database_url, pool_size=4, application_name="test")
    transactions = Transactions(engine, threads=3, name="test")

    async def digest_now() -> str:
        return "d"

    async def fails(_: str) -> tuple[dict[str, Any], str]:
        raise LookupError("no answer")

    async def hangs(_: str) -> tuple[dict[str, Any], str]:
        await asyncio.sleep(300)
        raise AssertionError

    with pytest.raises(LookupError):
        await asked_once(transactions, digest_now, fails, question="q", purpose="reward", model="m")
    stopped = asyncio.create_task(
        asked_once(transactions, digest_now, hangs, question="q", purpose="reward", model="m")
    )
    await asyncio.sleep(0.3)
    stopped.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopped
    assert await transactions.run(known_or_begin, "d", "next", 1.0) == "ask"
    await asyncio.to_thread(transactions.close)
    engine.dispose()


async def test_who_is_cancelled_while_it_begins_to_ask_leaves_no_question_behind(migrated_database_url: str) -> None:
    """The transaction that begins goes on in its thread after the cancel, and commits."""
    engine = make_engine(migrated_database_url, pool_size=4, application_name="test")
    transactions = Transactions(engine, threads=3, name="test")

    async def digest_now() -> str:
        return "d"

    async def never(_: str) -> tuple[dict[str, Any], str]:
        raise AssertionError

    with engine.connect() as other:
        other.exec_driver_sql("LOCK TABLE open_questions IN SHARE MODE")
        asking_ = asyncio.create_task(
            asked_once(transactions, digest_now, never, question="q", purpose="reward", model="m")
        )
        recording = Recording(migrated_database_url)
        blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'open_questions'::regclass"
        await until(lambda: recording.one(blocked) == (1,), 60.0)
        asking_.cancel()
        await asyncio.sleep(0)
        other.rollback()
    with pytest.raises(asyncio.CancelledError):
        await asking_
    assert recording.one("SELECT count(*) FROM open_questions") == (0,)
    await asyncio.to_thread(transactions.close)
    engine.dispose()
