"""`hindstream dashboard`: the figures of a run, refreshed until Ctrl-C."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from sqlalchemy import Engine, create_engine

from hindstream.dashboard.figures import read_figures, read_rewards_by_version, read_steps
from hindstream.dashboard.screen import figures_table
from hindstream.endpoints import resolve_endpoints
from hindstream.settings import load_settings


def dashboard(
    run: Annotated[str | None, typer.Option(help="The run; default: the one of the settings.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one table and end.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.2)] = 2.0,
) -> None:
    """Watch a run: turns, rewards, hints, micro-batches, weight versions, staleness, drops by reason."""
    settings = load_settings()
    name = run or settings.run.name
    engine = create_engine(resolve_endpoints(settings).database_url)
    console = Console()
    try:
        if once:
            console.print(_look(engine, name))
            return
        with Live(console=console, refresh_per_second=4) as live:
            while True:
                live.update(_look(engine, name))
                time.sleep(every)
    except KeyboardInterrupt:
        return
    finally:
        engine.dispose()


def _look(engine: Engine, run: str) -> Table:
    with engine.connect() as connection:
        return figures_table(
            run,
            read_figures(connection, run),
            read_rewards_by_version(connection, run),
            read_steps(connection, run),
        )
