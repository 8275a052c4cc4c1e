"""The main path's speed at its end: from a full micro-batch to the version that is served.

Each number is read from the database's own clock between two rows, so that starting a process costs nothing here.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.console import Console
from sqlalchemy import create_engine, text

from benchmarks.results import Result
from hindstream.cli.topics import ensure_topics
from hindstream.demo.flow import DemoPlan, DemoStack, run_demo
from hindstream.stack.local import Stack
from migrations import upgrade

_PARTITIONS = 8
_LIMIT_S = 300.0
_UPDATES = 4
"""Micro-batches; the first is left out, since it pays for the learner's first compilation."""


def run(console: Console) -> list[Result]:
    """On a stack of its own that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="hindstream-bench-") as directory:
        home = Path(directory)
        home.chmod(0o711)  # Postgres runs as another account where this is root
        stack = Stack(home / "home", say=lambda line: console.print(line, highlight=False))
        endpoints = stack.up(("broker", "postgres", "vllm"))
        try:
            assert endpoints.bootstrap_servers
            assert endpoints.database_url
            url = endpoints.database_url.replace("postgresql://", "postgresql+psycopg://")
            upgrade(url)
            ensure_topics(endpoints.bootstrap_servers, _PARTITIONS)
            environment = {
                "HINDSTREAM_HOME": str(stack.home),
                "HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS": endpoints.bootstrap_servers,
                "HINDSTREAM_DATABASE__URL": endpoints.database_url,
                "HINDSTREAM_POLICY__URL": endpoints.policy_url or "",
            }
            return _batch_to_served(console, home, url, environment)
        finally:
            stack.down()


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
