"""`hindstream up`, `down`, `status`, `logs`."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from hindstream.errors import UserError
from hindstream.settings import Settings, load_settings
from hindstream.stack import processes
from hindstream.stack.local import ALL, Stack, alive

# How often a followed log is looked at.
FOLLOW_S = 0.3
DEFAULT_LINES = 50


def up(
    only: Annotated[str, typer.Option(help="Only these, separated by commas: broker, postgres, vllm.")] = "",
) -> None:
    """Start what the settings do not give: broker, Postgres, model server."""
    settings = load_settings()
    stack = Stack(settings.home_dir, settings)
    given = given_elsewhere(settings)
    if only:
        wanted = [name.strip() for name in only.split(",") if name.strip()]
    else:
        wanted = [name for name in ALL if name not in given]
        for name, variable in given.items():
            print(f"{name}: not started, {variable} gives one")
    begun = time.monotonic()
    stack.up(wanted)
    print(f"up after {time.monotonic() - begun:.1f} s; data and logs are in {stack.home}")


def down(
    only: Annotated[str, typer.Option(help="Only these, separated by commas: broker, postgres, vllm.")] = "",
) -> None:
    """Stop what `up` started; the data stay."""
    settings = load_settings()
    stack = Stack(settings.home_dir, settings)
    stopped = stack.down([name.strip() for name in only.split(",") if name.strip()] or ALL)
    print(f"stopped: {', '.join(stopped)}" if stopped else f"nothing was running in {stack.home}")


def status() -> None:
    """What runs, where, since when. Exit code 1 if something that was started is dead."""
    from rich.console import Console
    from rich.table import Table

    settings = load_settings()
    stack = Stack(settings.home_dir, settings)
    given = given_elsewhere(settings)
    known = stack.known()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("service", "state", "pid", "address", "uptime", "data", "more"):
        table.add_column(column, overflow="fold")
    dead = False
    for name in ALL:
        service = known.get(name)
        if service is None:
            state = f"given by {given[name]}" if name in given else "stopped"
            table.add_row(name, state, "", "", "", "", "")
            continue
        living = alive(service)
        dead = dead or not living
        state = ("running" if service.ready else "starting") if living else "dead: run `hindstream up`"
        table.add_row(
            name,
            state,
            str(service.process.pid) if living else "",
            f"127.0.0.1:{service.port}",
            duration(processes.age_s(service.process)) if living else "",
            service.data,
            " ".join(f"{key}={value}" for key, value in service.detail.items()),
        )
    # Without a terminal rich would fold at 80 columns; paths are for copying.
    Console(width=None if sys.stdout.isatty() else 240).print(table)
    if dead:
        raise typer.Exit(1)


def logs(
    service: Annotated[str, typer.Argument(help="broker, postgres or vllm.")],
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on printing what is added.")] = False,
    lines: Annotated[
        int, typer.Option("-n", "--lines", help="How many of the last lines to begin with.")
    ] = DEFAULT_LINES,
) -> None:
    """Show a service's log, and follow it with -f."""
    settings = load_settings()
    path = Stack(settings.home_dir, settings).log_of(service)
    if not path.exists():
        raise UserError(f"{service} has no log yet: {path} is not there; `hindstream up` starts it")
    with path.open(errors="replace") as file:
        for line in file.readlines()[-lines:]:
            print(line, end="")
        while follow:
            try:
                addition = file.read()
                if addition:
                    print(addition, end="", flush=True)
                else:
                    time.sleep(FOLLOW_S)
            except KeyboardInterrupt:
                return


def given_elsewhere(settings: Settings) -> dict[str, str]:
    """The services that the settings give, with the variable that does: those the local stack leaves alone."""
    given = {}
    if settings.kafka.bootstrap_servers:
        given["broker"] = "HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS"
    if settings.database.url:
        given["postgres"] = "HINDSTREAM_DATABASE__URL"
    if settings.policy.url:
        given["vllm"] = "HINDSTREAM_POLICY__URL"
    return given


def duration(seconds: float) -> str:
    """ "42 s", "3 min", "5 h 12 min"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
