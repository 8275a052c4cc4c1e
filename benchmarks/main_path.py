"""The main path's speed at its end: from a full micro-batch to the version that is served.

Each number is read from the database's own clock between two rows, so that starting a process costs nothing here.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from sqlalchemy import create_engine, text

from benchmarks.results import Result
from benchmarks.stacks import bench_stack
from hindstream.cli.topics import ensure_topics
from hindstream.demo.flow import DemoPlan, DemoStack, run_demo

_PARTITIONS = 8
_LIMIT_S = 300.0
_UPDATES = 4
"""Micro-batches; the first is left out, since it pays for the learner's first compilation."""


def run(console: Console) -> list[Result]:
    """On a stack of its own that is gone afterwards."""
    with bench_stack(console, "broker", "postgres", "vllm") as stack:
        ensure_topics(stack.bootstrap, _PARTITIONS)
        return _batch_to_served(
            console, stack.directory, stack.url, stack.environment(stack.endpoints.policy_url or "")
        )


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
