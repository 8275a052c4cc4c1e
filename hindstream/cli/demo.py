"""`hindstream demo`: from nothing to a policy that learned from its user, on one machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from sqlalchemy import create_engine, text

from hindstream.demo.curve import save_curve
from hindstream.demo.flow import DemoPlan, DemoStack, run_demo
from hindstream.demo.report import print_report, save_json
from hindstream.endpoints import resolve_endpoints
from hindstream.settings import load_settings
from migrations import upgrade
from processors.runs import end_run


def demo(
    seed: Annotated[int, typer.Option(help="Order of the questions and sampling seeds.")] = 1,
    updates: Annotated[int, typer.Option(help="Micro-batches to learn from.", min=1)] = 20,
    batch_size: Annotated[int, typer.Option(help="Turns a micro-batch.", min=1)] = 16,
    lr: Annotated[float, typer.Option(help="AdamW's learning rate.")] = 3e-5,
    rounds: Annotated[int, typer.Option(help="Times each held-out question is asked.", min=1)] = 1,
    concurrency: Annotated[int, typer.Option(help="Conversations at once.", min=1)] = 8,
    time_limit: Annotated[float, typer.Option(help="Seconds that the learning may take at most.")] = 1200.0,
    build: Annotated[Path, typer.Option(help="Where the curve and demo.json go.")] = Path("build"),
    down: Annotated[bool, typer.Option("--down", help="Stop the stack at the end.")] = False,
) -> None:
    """Watch SmolLM2-135M learn to answer as its user likes, through Kafka, Faust, Postgres and vLLM."""
    started = time.monotonic()
    console = Console()
    settings = load_settings()
    resolved = resolve_endpoints(settings)
    needed = [
        service
        for service, given in (
            ("broker", settings.kafka.bootstrap_servers),
            ("postgres", settings.database.url),
            ("vllm", settings.policy.url),
        )
        if given is None
    ]
    try:
        if needed:
            resolved.stack.up(needed)
        database_url = resolved.database_url
        upgrade(database_url)
        _end_demos(database_url)
        plan = DemoPlan(
            run=_next_name(database_url),
            seed=seed,
            updates=updates,
            batch_size=batch_size,
            lr=lr,
            rounds=rounds,
            concurrency=concurrency,
            time_limit_s=time_limit,
        )
        console.print(f"run [bold]{plan.run}[/bold]: {updates} updates of {batch_size} turns, lr {lr:g}, seed {seed}")
        stack = DemoStack(database_url=database_url, environment={}, work_dir=settings.home_dir / "demo")
        outcome = run_demo(plan, stack, console)
        _end_demos(database_url)
    finally:
        if down:
            resolved.stack.down(needed)
    curve, figures = build / "demo.png", build / "demo.json"
    asked = len(outcome.after)
    save_curve(
        curve, outcome.rewards, (outcome.liked_before, asked), (outcome.liked_after, asked), outcome.final_version
    )
    save_json(figures, outcome)
    print_report(console, outcome, curve, figures)
    console.print(f"\n{time.monotonic() - started:.0f} s in all")


def _end_demos(database_url: str) -> None:
    """Later turns of the log are none of a demo that is over, also of one that was interrupted."""
    engine = create_engine(database_url)
    with engine.begin() as connection:
        query = text("SELECT run FROM runs WHERE run LIKE 'demo-%' AND ended_at IS NULL")
        for run in connection.execute(query).scalars().all():
            end_run(connection, run)
    engine.dispose()


def _next_name(database_url: str) -> str:
    """`demo-N`, the first that no run has: a demo never writes into another's run."""
    engine = create_engine(database_url)
    with engine.connect() as connection:
        taken = set(connection.execute(text("SELECT run FROM runs UNION SELECT policy FROM weight_versions")).scalars())
    engine.dispose()
    return next(name for number in range(1, len(taken) + 2) if (name := f"demo-{number}") not in taken)
