"""The Faust worker on a real broker: whatever is done to it, every event is recorded, once."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from hindstream.stack.local import Stack
from migrations import upgrade
from processors.worker import EXIT_OK, EXIT_UNHEALTHY
from schemas.envelope import WireRecord
from schemas.events import SessionClosed
from schemas.publish import AckedPublisher
from tests.processors.conversations import next_state, turn, wire

pytestmark = pytest.mark.stack

ROOT = Path(__file__).parents[2]
PARTITIONS = 4
POISON = WireRecord(key=b"poison", value=b"{", headers=[])
STARTS_S = 60.0
"""A worker's start on two busy cores, and the group's wait for one that was killed."""


@dataclass
class Pipeline:
    """A topic and a database of the test's own, and workers between them."""

    bootstrap: str
    url: str
    directory: Path
    topic: str = field(default_factory=lambda: f"events-{secrets.token_hex(4)}")
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        admin.create_topics({self.topic: {"num_partitions": PARTITIONS}}, wait_for_metadata=True)
        admin.close()
        self.engine = create_engine(self.url, pool_pre_ping=True)

    def start(self, *, batch_events: int = 64, dead_letter_limit: int = 100) -> subprocess.Popen[bytes]:
        told = {
            "bootstrap": self.bootstrap,
            "url": self.url,
            "topic": self.topic,
            "roles": ["agents"],
            "batch_events": batch_events,
            "dead_letter_limit": dead_letter_limit,
            "idle_s": 3600.0,
            "directory": str(self.directory / f"worker-{len(self.running)}"),
        }
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.processors.worker_process", json.dumps(told)],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.running.append(process)
        return process

    @property
    def log(self) -> Path:
        return self.directory / "workers.log"

    def publish(self, records: Sequence[WireRecord]) -> None:
        with AckedPublisher(self.bootstrap, client_id="test") as publisher:
            publisher.publish(self.topic, records)

    def value(self, query: str) -> Any:
        with self.engine.connect() as connection:
            return connection.execute(text(query)).scalar_one()

    def wait(self, done: Callable[[], bool], what: str, seconds: float = STARTS_S) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} after {seconds} s; the end of the log:\n{self.log.read_text()[-6000:]}")
            time.sleep(0.05)

    def events(self) -> int:
        try:
            return int(self.value("SELECT count(*) FROM events"))
        except DBAPIError:  # stopped by the test
            return -1

    def wait_for_events(self, n: int, seconds: float = STARTS_S) -> None:
        self.wait(lambda: self.events() >= n, f"only {self.events()} of {n} events are recorded", seconds)

    def stop(self, process: subprocess.Popen[bytes]) -> int:
        process.send_signal(signal.SIGTERM)
        return process.wait(timeout=STARTS_S)

    def committed(self) -> int:
        """Records up to which the group has committed, over all partitions."""
        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap, group_id=self.topic, enable_auto_commit=False)
        try:
            return sum(consumer.committed(TopicPartition(self.topic, i)) or 0 for i in range(PARTITIONS))
        finally:
            consumer.close()

    def close(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
                process.wait()
        self.engine.dispose()
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        admin.delete_topics([self.topic])
        admin.close()


@pytest.fixture
def pipeline(broker: str, migrated_database_url: str, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(broker, migrated_database_url, tmp_path)
    yield made
    made.close()


def conversations(sessions: int, turns: int = 4) -> list[WireRecord]:
    """`sessions` sessions of `turns` turns with a reply each, closed with their counts: 2 turns + 1 events each."""
    records = []
    for s in range(sessions):
        session = f"session-{s}"
        for t in range(turns):
            carried = [f"{session}-n{t - 1}"] if t else []
            parent = f"{session}-t{t - 1}" if t else None
            records.append(wire(turn(f"{session}-t{t}", session, parent, ordinal=t, next_state_ids=carried)))
            records.append(wire(next_state(f"{session}-n{t}", f"{session}-t{t}", session)))
        records.append(wire(SessionClosed(session_id=session, turns=turns, next_states=turns)))
    return records


def assert_whole(pipeline: Pipeline, sessions: int, turns: int = 4) -> None:
    """Every row of `conversations`, once, linked, and the ledger balances."""
    n = sessions * turns
    assert pipeline.value("SELECT count(*) FROM events") == sessions * (2 * turns + 1)
    assert pipeline.value("SELECT count(*) FROM turns") == n
    assert pipeline.value("SELECT count(*) FROM next_states") == n
    assert pipeline.value("SELECT count(*) FROM turn_completions") == n
    assert pipeline.value("SELECT count(*) FROM samples WHERE state = 'pending' AND linked") == n
    assert pipeline.value("SELECT count(*) FROM evaluations") == 3 * n
    assert pipeline.value("SELECT balance FROM ledger") == 0


def test_events_are_recorded_around_poison_and_a_stop_is_clean(pipeline: Pipeline) -> None:
    records = conversations(20)
    records[50:50] = [POISON, records[0], POISON]
    pipeline.publish(records)
    worker = pipeline.start()
    pipeline.wait_for_events(180)
    pipeline.wait(lambda: pipeline.value("SELECT count(*) FROM dead_letters") == 2, "no dead letters")
    assert pipeline.stop(worker) == EXIT_OK
    assert_whole(pipeline, 20)
    assert pipeline.committed() == 183, "a clean stop commits what it has recorded"
    assert pipeline.value("SELECT count(*) FROM outbox WHERE topic = 'dead-letters'") == 2


def test_kill_9_in_the_middle_of_2000_events_loses_and_doubles_nothing(pipeline: Pipeline) -> None:
    sessions = 223
    records = conversations(sessions)
    assert len(records) == 2007
    pipeline.publish(records)
    chance = random.Random(time.time_ns())
    for kill in range(3):
        worker = pipeline.start(batch_events=16)
        goal = min(len(records) - 500, pipeline.events() + chance.randint(100, 500))
        pipeline.wait_for_events(goal)
        worker.kill()
        worker.wait()
        assert pipeline.committed() <= pipeline.events(), f"kill {kill}: the broker was told more than is recorded"
    assert pipeline.events() < len(records)
    worker = pipeline.start()
    pipeline.wait_for_events(len(records))
    assert pipeline.stop(worker) == EXIT_OK
    assert_whole(pipeline, sessions)
    assert pipeline.value("SELECT count(*) FROM dead_letters") == 0


def test_workers_that_come_and_go_share_the_partitions_without_a_gap(pipeline: Pipeline) -> None:
    sessions = 150
    records = conversations(sessions)
    third = len(records) // 3
    first = pipeline.start(batch_events=8)
    pipeline.publish(records[:third])
    pipeline.wait_for_events(100)
    second = pipeline.start(batch_events=8)
    pipeline.publish(records[third : 2 * third])
    pipeline.wait_for_events(third + 50)
    assert pipeline.stop(first) == EXIT_OK
    pipeline.publish(records[2 * third :])
    pipeline.wait_for_events(len(records))
    assert pipeline.stop(second) == EXIT_OK
    assert_whole(pipeline, sessions)
    assert pipeline.committed() == len(records)


def test_a_flood_of_poison_stops_the_worker_and_a_restart_does_not_drain_it(pipeline: Pipeline) -> None:
    pipeline.publish([*conversations(2), *[POISON] * 60])
    for _ in range(2):
        worker = pipeline.start(batch_events=8, dead_letter_limit=20)
        assert worker.wait(timeout=STARTS_S) == EXIT_UNHEALTHY
        assert pipeline.value("SELECT count(*) FROM dead_letters") < 20
    assert "could not be read; look at the table dead_letters" in pipeline.log.read_text()
    worker = pipeline.start(dead_letter_limit=1000)
    pipeline.wait(lambda: pipeline.value("SELECT count(*) FROM dead_letters") == 60, "they were let pass")
    assert pipeline.stop(worker) == EXIT_OK
    assert_whole(pipeline, 2)


def test_a_fault_that_waiting_does_not_mend_stops_the_worker_and_costs_no_event(pipeline: Pipeline) -> None:
    """The first try raises in the agent; after a restart every row is there."""
    pipeline.publish(conversations(10))
    with pipeline.engine.begin() as connection:
        connection.execute(text("ALTER TABLE next_states RENAME TO hidden"))
    worker = pipeline.start(batch_events=8)
    assert worker.wait(timeout=STARTS_S) == EXIT_UNHEALTHY
    assert pipeline.committed() == 0
    with pipeline.engine.begin() as connection:
        connection.execute(text("ALTER TABLE hidden RENAME TO next_states"))
    worker = pipeline.start()
    pipeline.wait_for_events(90)
    assert pipeline.stop(worker) == EXIT_OK
    assert_whole(pipeline, 10)


@contextmanager
def postgres_of_its_own(home: Path) -> Iterator[tuple[Stack, str]]:
    stack = Stack(home)
    try:
        url = stack.up(("postgres",)).database_url
        assert url is not None
        url = url.replace("postgresql://", "postgresql+psycopg://")
        upgrade(url)
        yield stack, url
    finally:
        stack.down(("postgres",))


def test_a_database_that_is_away_is_waited_for(broker: str, tmp_path: Path) -> None:
    sessions = 120
    records = conversations(sessions)
    with postgres_of_its_own(tmp_path / "home") as (stack, url):
        pipeline = Pipeline(broker, url, tmp_path)
        try:
            worker = pipeline.start(batch_events=8)
            pipeline.publish(records[: len(records) // 2])
            pipeline.wait_for_events(100)
            (service,) = [one for name, one in stack.running().items() if name == "postgres"]
            os.kill(service.process.pid, signal.SIGKILL)
            pipeline.publish(records[len(records) // 2 :])
            time.sleep(3.0)
            assert worker.poll() is None, "the worker waits"
            stack.up(("postgres",))
            pipeline.wait_for_events(len(records))
            assert pipeline.stop(worker) == EXIT_OK
            assert_whole(pipeline, sessions)
            assert "waiting" in pipeline.log.read_text()
        finally:
            pipeline.close()


def test_broken_connections_in_the_middle_of_transactions_cost_nothing(pipeline: Pipeline) -> None:
    sessions = 100
    records = conversations(sessions)
    worker = pipeline.start(batch_events=8)
    pipeline.publish(records)
    for _ in range(10):
        with suppress(DBAPIError), pipeline.engine.begin() as connection:
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND application_name = 'hindstream worker'"
                )
            )
        time.sleep(0.2)
    pipeline.wait_for_events(len(records))
    assert pipeline.stop(worker) == EXIT_OK
    assert_whole(pipeline, sessions)


@pytest.mark.slow
def test_a_worker_that_was_paused_beyond_its_session_comes_back_as_a_stranger(pipeline: Pipeline) -> None:
    """SIGSTOP, as a snapshot of the machine does: the group goes on without it, and what it still holds is a repeat."""
    sessions = 300
    records = conversations(sessions)
    paused, other = pipeline.start(batch_events=8), pipeline.start(batch_events=8)
    pipeline.publish(records[:1200])
    pipeline.wait_for_events(100)
    paused.send_signal(signal.SIGSTOP)
    pipeline.publish(records[1200:])
    # It may be paused in a transaction that holds a session's lock: the database ends that after a minute.
    pipeline.wait_for_events(len(records), seconds=300.0)
    paused.send_signal(signal.SIGCONT)
    late = [wire(next_state(f"late-{i}", f"session-{i}-t0", f"session-{i}")) for i in range(100)]
    pipeline.publish(late)
    pipeline.wait_for_events(len(records) + len(late))
    assert (pipeline.stop(paused), pipeline.stop(other)) == (EXIT_OK, EXIT_OK)
    assert pipeline.value("SELECT count(*) FROM turns") == sessions * 4
    assert pipeline.value("SELECT count(*) FROM evaluations") == 3 * sessions * 4
    assert pipeline.value("SELECT balance FROM ledger") == 0
    # What is recorded while the group changes hands may be left uncommitted: it is read again, to no effect.
    assert pipeline.committed() <= len(records) + len(late)
