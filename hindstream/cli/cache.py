"""`hindstream cache stats`: the kept answers of model servers, and what they saved each run."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hindstream.cache import CacheStats, cache_stats
from hindstream.cli.database import database

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)

_KEPT = ("purpose", "model", "answers", "of them unused", "bytes", "tokens in", "tokens out", "oldest", "newest")
_USED = ("run", "purpose", "questions", "paid", "spared", "share", "tokens in spared", "tokens out spared")
_WIDE = 140
"""Columns where the output is no terminal."""


@app.callback()
def root() -> None:
    """Answers of model servers are kept by everything that shaped them, so no question is paid for twice."""


@app.command()
def stats(json_: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False) -> None:
    """How many answers are kept, how large they are, and what each run paid for and was spared."""
    with (
        database(
            "is it upgraded? `hindstream db upgrade`",
            connect_args={"options": "-c default_transaction_read_only=on"},
        ) as engine,
        engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection,
    ):
        found = cache_stats(connection)
    if json_:
        print(json.dumps(asdict(found), default=lambda moment: moment.isoformat(), ensure_ascii=False))
    else:
        _show(Console(width=None if sys.stdout.isatty() else _WIDE), found)


def _show(console: Console, found: CacheStats) -> None:
    kept = Table(*_KEPT, box=box.SIMPLE)
    for one in found.entries:
        kept.add_row(
            one.purpose,
            escape(one.model),
            f"{one.entries:,}",
            f"{one.unused:,}",
            f"{one.bytes:,}",
            _count(one.prompt_tokens),
            _count(one.completion_tokens),
            f"{one.oldest:%Y-%m-%d %H:%M}",
            f"{one.newest:%Y-%m-%d %H:%M}",
        )
    console.print(kept)
    used = Table(*_USED, box=box.SIMPLE)
    for run in found.runs:
        used.add_row(
            escape(run.run),
            run.purpose,
            f"{run.questions:,}",
            f"{run.paid:,}",
            f"{run.spared:,}",
            f"{run.spared / run.questions:.0%}",
            _count(run.prompt_tokens_spared),
            _count(run.completion_tokens_spared),
        )
    console.print(used)
    console.print(
        f"{sum(one.entries for one in found.entries):,} answers, {found.table_bytes / (1 << 20):,.1f} MiB on disk with "
        f"indexes; {found.asked_now} questions are being asked now"
    )


def _count(tokens: int | None) -> str:
    return "–" if tokens is None else f"{tokens:,}"
