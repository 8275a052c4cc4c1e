"""The main path's speed: events to rewards beside a Faust agent that does nothing, and micro-batch to served version.

Each number is read from the database's own clock between two rows, so that starting a process costs nothing here.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from sqlalchemy import Engine, create_engine, text

from benchmarks.results import Result
from benchmarks.synthetic import EVENTS_PER_SESSION, conversations
from hindstream.demo.flow import DemoPlan, DemoStack, run_demo
from hindstream.demo.recipe import demo_recipe
from hindstream.services import Service, Services
from hindstream.stack.local import Stack
from migrations import upgrade
from schemas.publish import AckedPublisher
from schemas.topics import AGENT_EVENTS

_SESSIONS = 4_000
_PUBLISH_CHUNK = 500
_LIMIT_S = 300.0
_UPDATES = 4
"""Micro-batches of the second part; the first is left out, since it pays for the learner's first compilation."""


def run(console: Console) -> list[Result]:
    """Both parts on a stack of their own that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="hindstream-bench-") as directory:
        home = Path(directory)
        stack = Stack(home / "home", say=lambda line: console.print(line, highlight=False))
        endpoints = stack.up(("broker", "postgres", "vllm"))
        try:
            assert endpoints.bootstrap_servers
            assert endpoints.database_url
            url = endpoints.database_url.replace("postgresql://", "postgresql+psycopg://")
            upgrade(url)
            environment = {
                "HINDSTREAM_HOME": str(stack.home),
                "HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS": endpoints.bootstrap_servers,
                "HINDSTREAM_DATABASE__URL": endpoints.database_url,
                "HINDSTREAM_POLICY__URL": endpoints.policy_url or "",
            }
            results = _rewards_per_second(console, home, endpoints.bootstrap_servers, url, environment)
            return results + _batch_to_served(console, home, url, environment)
        finally:
            stack.down()


def _rewards_per_second(
    console: Console, home: Path, bootstrap: str, url: str, environment: dict[str, str]
) -> list[Result]:
    subprocess.run(
        [sys.executable, "-m", "hindstream", "topics", "create"],
        env=Services(home, environment).environment,
        check=True,
    )
    events = _SESSIONS * EVENTS_PER_SESSION
    console.print(f"publishing {events} events …")
    records = list(conversations(_SESSIONS))
    with AckedPublisher(bootstrap, client_id="benchmark") as publisher:
        for start in range(0, len(records), _PUBLISH_CHUNK):
            publisher.publish(AGENT_EVENTS, records[start : start + _PUBLISH_CHUNK])
    idle = _idle_seconds(home, bootstrap, events)

    recipe = home / "rules.json"
    plain: dict[str, Any] = msgspec.to_builtins(demo_recipe(lr=1e-6, batch_size=16))
    plain |= {"name": "rules", "hint": None, "teacher": None}
    plain["loss"] |= {"w_opd": 0.0}
    recipe.write_bytes(msgspec.json.encode(plain))
    services = Services(
        home / "logs", environment | {"HINDSTREAM_RUN__NAME": "rules", "HINDSTREAM_RUN__RECIPE": str(recipe)}
    )
    engine = create_engine(url)
    try:
        services.start(Service(name="worker", arguments=("worker", "run", "--roles", "agents,evaluators")))
        _wait(engine, "SELECT count(*) >= :n FROM rewards WHERE run = 'rules'", _SESSIONS, services)
    finally:
        services.stop()
    with engine.connect() as connection:
        seconds = connection.execute(
            text(
                "SELECT extract(epoch FROM (SELECT max(created_at) FROM rewards WHERE run = 'rules') - "
                "(SELECT min(created_at) FROM events))"
            )
        ).scalar_one()
    engine.dispose()
    return [
        Result(
            name="events_to_rewards_per_s",
            value=events / float(seconds),
            unit="events/s",
            baseline=events / idle,
            baseline_name="Faust agent that does nothing",
        )
    ]


def _idle_seconds(home: Path, bootstrap: str, events: int) -> float:
    file = home / "idle.txt"
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.idle_agent", bootstrap, str(events), str(file)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + _LIMIT_S
        while not (file.exists() and file.read_text()):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the do-nothing agent did not see every event")
            time.sleep(0.1)
        return float(file.read_text())
    finally:
        process.terminate()
        process.wait()


def _batch_to_served(console: Console, home: Path, url: str, environment: dict[str, str]) -> list[Result]:
    plan = DemoPlan(
        run="bench",
        seed=1,
        updates=_UPDATES,
        batch_size=16,
        lr=1e-5,
        rounds=1,
        concurrency=8,
        time_limit_s=_LIMIT_S * 2,
    )
    run_demo(plan, DemoStack(database_url=url, environment=environment, work_dir=home / "demo"), console)
    engine = create_engine(url)
    with engine.connect() as connection:
        served, step = connection.execute(
            text(
                """
                SELECT avg(extract(epoch FROM l.created_at - b.created_at)), avg(t.seconds)
                FROM micro_batches b
                JOIN training_steps t USING (micro_batch_id)
                JOIN weight_loads l ON l.policy = b.policy AND l.version = t.version AND l.status = 'serving'
                WHERE b.run = 'bench' AND b.seq > 1
                """
            )
        ).one()
    engine.dispose()
    return [
        Result(
            name="micro_batch_to_served_s",
            value=float(served),
            unit="s",
            baseline=float(step),
            baseline_name="the training step alone",
        )
    ]


def _wait(engine: Engine, query: str, count: int, services: Services) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while True:
        with engine.connect() as connection:
            if connection.execute(text(query), {"n": count}).scalar_one():
                return
        services.check()
        if time.monotonic() > deadline:
            raise RuntimeError(f"not every reward was there after {_LIMIT_S} s")
        time.sleep(0.5)
