"""The pipeline's speed: events recorded and rewarded beside two plain Faust agents; its memory; a slow judge's use.

The rewards come from the rules of the code judge, which answer at once. One worker process has both roles; broker and
Postgres share the machine with it. Seconds are read from the database's clock, from the first event's row to the last
reward's, so that starting Python costs nothing here.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rich.console import Console
from sqlalchemy import Engine, create_engine, text

from benchmarks import judge_utilisation, plain_agents
from benchmarks.chunks import chunks
from benchmarks.memory import resident_mb
from benchmarks.results import Result
from benchmarks.stacks import bench_stack
from benchmarks.synthetic import EVENTS_PER_SESSION, conversations
from hindstream.demo.recipe import demo_recipe
from hindstream.services import Service, Services
from schemas.publish import AckedPublisher
from schemas.topics import AGENT_EVENTS

T = TypeVar("T")

_SESSIONS = {None: 10_000, "small": 2_000, "long": 10_000}
_MEMORY_EVENTS = {None: 100_000, "small": 20_000, "long": 1_000_000}
"""Recorded while the worker's memory is watched."""
_WARM = 0.2
"""Of these events: until then caches and pools fill."""
_LIMIT_S = 900.0


def run(console: Console, size: str | None) -> list[Result]:
    """All parts on a stack of their own that is gone afterwards."""
    with bench_stack(console, "broker", "postgres") as stack:
        environment = stack.environment("http://127.0.0.1:9")  # nobody is asked
        return [
            *recording(console, stack.directory, stack.url, environment, size),
            Result(
                name="judge_utilisation",
                value=judge_utilisation.measure(stack.bootstrap, stack.url),
                unit="of the judge's own throughput",
            ),
        ]


def recording(console: Console, home: Path, url: str, environment: dict[str, str], size: str | None) -> list[Result]:
    """Events a second and their ratios, and the worker's memory. `home` is a directory for files; the broker and the
    empty database are those of `environment`, and `url` is the database's address for SQLAlchemy."""
    bootstrap = environment["HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS"]
    subprocess.run(
        [sys.executable, "-m", "hindstream", "topics", "create"],
        env=Services(home, environment).environment,
        check=True,
    )
    sessions = _SESSIONS[size]
    events = sessions * EVENTS_PER_SESSION
    console.print(f"publishing {events} events …")
    _publish(bootstrap, 0, sessions)
    idle, table = (plain_agents.seconds(kind, bootstrap, events, home) for kind in ("idle", "table"))
    engine = create_engine(url)
    more = _MEMORY_EVENTS[size] // EVENTS_PER_SESSION
    try:
        with _worker(home, environment) as (services, pid):
            _wait(engine, sessions, services)
            ours = _seconds(engine)
            console.print(f"publishing {more * EVENTS_PER_SESSION} events more …")
            _publish(bootstrap, sessions, sessions + int(_WARM * more))
            _wait(engine, sessions + int(_WARM * more), services)
            warm = resident_mb(pid)
            _publish(bootstrap, sessions + int(_WARM * more), sessions + more)
            _wait(engine, sessions + more, services)
            grown = resident_mb(pid) - warm
    finally:
        engine.dispose()
    name = "Faust agent that does nothing"
    return [
        Result(name="events_per_s", value=events / ours, unit="events/s", baseline=events / idle, baseline_name=name),
        Result(name="ratio_noop_agent", value=idle / ours, unit="of its rate"),
        Result(name="ratio_table_agent", value=table / ours, unit="of the rate of one that counts in a table"),
        Result(name="table_agent_events_per_s", value=events / table, unit="events/s"),
        Result(
            name="memory_growth_mb",
            value=grown,
            unit=f"MB over {int((1 - _WARM) * more) * EVENTS_PER_SESSION:,} events",
            baseline=warm,
            baseline_name="MB before",
        ),
    ]


@contextmanager
def _worker(home: Path, environment: dict[str, str]) -> Iterator[tuple[Services, int]]:
    """A worker with agents and evaluators, and its process id."""
    recipe = home / "rules.json"
    plain: dict[str, Any] = msgspec.to_builtins(demo_recipe(lr=1e-6, batch_size=16))
    plain |= {"name": "rules", "hint": None, "teacher": None}
    plain["loss"] |= {"w_opd": 0.0}
    recipe.write_bytes(msgspec.json.encode(plain))
    services = Services(
        home / "logs", environment | {"HINDSTREAM_RUN__NAME": "rules", "HINDSTREAM_RUN__RECIPE": str(recipe)}
    )
    try:
        services.start(Service(name="worker", arguments=("worker", "run", "--roles", "agents,evaluators")))
        yield services, services.pid("worker")
    finally:
        services.stop()


def _seconds(engine: Engine) -> float:
    with engine.connect() as connection:
        return float(
            connection.execute(
                text(
                    "SELECT extract(epoch FROM (SELECT max(created_at) FROM rewards WHERE run = 'rules') - "
                    "(SELECT min(created_at) FROM events))"
                )
            ).scalar_one()
        )


def _publish(bootstrap: str, first: int, end: int) -> None:
    records = conversations(range(first, end))
    with AckedPublisher(bootstrap, client_id="benchmark") as publisher:
        for chunk in chunks(records):
            publisher.publish(AGENT_EVENTS, chunk)


def _wait(engine: Engine, rewards: int, services: Services) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while True:
        with engine.connect() as connection:
            found = connection.execute(text("SELECT count(*) FROM rewards WHERE run = 'rules'")).scalar_one()
        if found >= rewards:
            return
        services.check()
        if time.monotonic() > deadline:
            raise RuntimeError(f"not every reward was there after {_LIMIT_S} s")
        time.sleep(0.5)
