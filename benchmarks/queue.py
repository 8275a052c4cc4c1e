"""How fast evaluations are claimed by 1, 10 and 100 workers beside each other, with many finished ones in the table."""

from __future__ import annotations

import threading
import time

from rich.console import Console
from sqlalchemy import Connection, Engine

from benchmarks.results import Result
from benchmarks.stacks import bench_stack
from benchmarks.synthetic import conversations
from processors.dead_letters import Delivery
from processors.evaluators import queue
from processors.recording import record
from processors.runs import ensure_run
from schemas.database import make_engine
from schemas.recipes import recipe_named

_RUN = "queue"
_FINISHED = {None: 100_000, "small": 10_000, "long": 1_000_000}
_CLAIMS = 4_000
"""Evaluations that each number of workers claims."""
_AT_ONCE = 4
"""A claim of a worker whose server has some slots free."""
_WORKERS = (1, 10, 100)
_LONGEST_S = 30.0
"""Of one number of workers; the rate is then that of the claims so far."""


def run(console: Console, size: str | None) -> list[Result]:
    """On a Postgres of its own that is gone afterwards."""
    with bench_stack(console, "postgres") as stack:
        engine = make_engine(stack.url, pool_size=max(_WORKERS), application_name="benchmark")
        try:
            return _measure(console, engine, _FINISHED[size])
        finally:
            engine.dispose()


def _measure(console: Console, engine: Engine, finished: int) -> list[Result]:
    console.print(f"{finished} finished evaluations …")
    with engine.begin() as connection:
        fill(connection, finished=finished, waiting=sum(_CLAIMS + workers * _AT_ONCE for workers in _WORKERS))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM ANALYZE evaluations")
    rates = {workers: _rate(engine, workers) for workers in _WORKERS}
    return [
        Result(
            name=f"claims_per_s_{workers}",
            value=rate,
            unit="evaluations/s",
            baseline=rates[_WORKERS[0]],
            baseline_name="one worker",
        )
        for workers, rate in rates.items()
    ]


def fill(connection: Connection, *, finished: int, waiting: int) -> None:
    """A run "queue" with so many finished and claimable evaluations of rewards, in the caller's transaction."""
    recipe = recipe_named("binary-rl", {"judge": {"code": False}})
    ensure_run(connection, run=_RUN, kind="live", policy="policy", recipe=recipe)
    made = conversations(range(1))
    record(connection, [Delivery("agent-events", 0, i, r.key, r.headers, r.value) for i, r in enumerate(made)])
    connection.exec_driver_sql("DELETE FROM evaluations WHERE run = 'queue'")  # of the one that is copied
    rows = {"finished": finished, "all": finished + waiting}
    connection.exec_driver_sql(
        "INSERT INTO turns SELECT copy.* FROM turns t, generate_series(1, %(all)s) i, "
        "LATERAL jsonb_populate_record(t, jsonb_build_object('turn_id', 'copy-' || i)) copy",
        rows,
    )
    connection.exec_driver_sql(
        "INSERT INTO evaluations (run, turn_id, signal, state, created_at, finished_at) "
        f"SELECT '{_RUN}', 'copy-' || i, 'reward', CASE WHEN i <= %(finished)s THEN 'done' ELSE 'open' END, "
        "now() - make_interval(secs => (%(all)s - i) / 100.0), "
        "CASE WHEN i <= %(finished)s THEN now() END FROM generate_series(1, %(all)s) i",
        rows,
    )


def _rate(engine: Engine, workers: int) -> float:
    """Evaluations a second that `workers` threads claim together, each over its own connection, until `_CLAIMS` are
    claimed. They stay claimed, as those of busy workers are."""
    connections = [engine.connect() for _ in range(workers)]
    claimed, lock, start = 0, threading.Lock(), threading.Barrier(workers + 1)

    def work(number: int, connection: Connection) -> None:
        nonlocal claimed
        start.wait()
        until = time.monotonic() + _LONGEST_S
        while claimed < _CLAIMS and time.monotonic() < until:
            with connection.begin():
                got = queue.claim(connection, signal="reward", worker=f"w{number}", n=_AT_ONCE, lease_s=600.0)
            with lock:
                claimed += len(got)

    threads = [threading.Thread(target=work, args=one) for one in enumerate(connections)]
    try:
        for thread in threads:
            thread.start()
        start.wait()
        begun = time.perf_counter()
        for thread in threads:
            thread.join()
        return claimed / (time.perf_counter() - begun)
    finally:
        for connection in connections:
            connection.close()
