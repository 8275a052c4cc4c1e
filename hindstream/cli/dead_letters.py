"""`hindstream dead-letters`: records that could not be recorded, to look at, replay after a fix, or drop."""

from __future__ import annotations

import json
import os
import pwd
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from sqlalchemy import Engine

from hindstream.cli.database import database
from hindstream.cli.worker import letter_policy
from hindstream.dead_letters import Filter, as_json, describe, find, moment, printable, show
from hindstream.endpoints import resolve_endpoints
from hindstream.errors import UserError
from hindstream.settings import load_settings
from processors.letters import Settled, drop, replay
from schemas.publish import AckedPublisher, PublishFailed
from schemas.states import DEAD_LETTER_STATES

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)

_AT_ONCE = 100
"""Letters of one transaction: what is published again, should the process die between the broker and the database."""
_WIDE = 160
"""Columns where the output is no terminal."""
_ANSWER_MS = 10_000
_NOT_ALL = 1
"""Exit code where some letters were left as they are."""

Topic = Annotated[str | None, typer.Option(help="Only records of this topic.")]
Error = Annotated[str | None, typer.Option(help="Only of this error class.")]
Since = Annotated[
    str | None, typer.Option(help="Only those that came in the last 30m, 12h, 7d, or since 2027-01-31T00:00Z.")
]
Ids = Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="As `hindstream dead-letters list` says.")]
By = Annotated[str | None, typer.Option(help="Who says so; default: the name of your account.")]
All = Annotated[bool, typer.Option("--all", help="All open ones that --topic, --error and --since leave.")]


@app.callback()
def root() -> None:
    """Records that could not be recorded. Nothing of them is lost: they are kept byte for byte."""


@app.command(name="list")
def list_(
    topic: Topic = None,
    error: Error = None,
    since: Since = None,
    state: Annotated[str, typer.Option(help=f"{', '.join(DEAD_LETTER_STATES)}, or all.")] = "open",
    limit: Annotated[int, typer.Option(help="The newest so many.", min=1)] = 50,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object a letter.")] = False,
) -> None:
    """Which records, since when, and why. The newest come first."""
    if state not in (*DEAD_LETTER_STATES, "all"):
        raise UserError(f"--state is {state!r}; it is one of {', '.join(DEAD_LETTER_STATES)}, or all")
    wanted = Filter(topic=topic, error=error, since=moment(since), state=None if state == "all" else state)
    with database() as engine, engine.connect() as connection:
        rows, total = find(connection, wanted, limit)
    if json_:
        for row in rows:
            print(json.dumps(as_json(row), ensure_ascii=False))
        return
    table = Table("id", "came", "record", "bytes", "error", "what was wrong", "replays", "state", box=box.SIMPLE)
    for row in rows:
        table.add_row(
            str(row.dead_letter_id),
            f"{row.created_at:%Y-%m-%d %H:%M}",
            escape(f"{row.topic}/{row.partition}@{row.record_offset}"),
            "–" if row.bytes is None else f"{row.bytes:,}",
            escape(row.error_class),
            escape(printable(row.error_message, 200)),
            str(row.replays),
            row.state,
        )
    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    console.print(table)
    console.print(f"{len(rows)} of {total}")


@app.command(name="show")
def show_(
    number: Annotated[int, typer.Argument(metavar="ID", help="As `hindstream dead-letters list` says.")],
    raw: Annotated[
        bool, typer.Option("--raw", help="Only the value, whole and as it came: for a file or a program.")
    ] = False,
) -> None:
    """One letter: headers, fault, history, and the first bytes of its value as hexadecimal numbers."""
    with database() as engine, engine.connect() as connection:
        row = show(connection, number)
    if row is None:
        raise UserError(f"there is no dead letter {number}; look at `hindstream dead-letters list --state all`")
    if not raw:
        print(describe(row, letter_policy(load_settings())))
    elif row.value is None:
        raise UserError(f"dead letter {number} has no value")
    elif sys.stdout.isatty():  # what a stranger wrote must not steer the terminal
        print(printable(bytes(row.value).decode("utf-8", errors="backslashreplace"), None))
    else:
        sys.stdout.buffer.write(row.value)


@app.command(name="replay")
def replay_(
    ids: Ids = None, topic: Topic = None, error: Error = None, since: Since = None, all_: All = False, by: By = None
) -> None:
    """Publish letters to their topic again, byte for byte, in the order of the log. Do so after a fix: what fails again
    is a new letter.

    A letter that was replayed stays as it is. Exit code 1 where some were left, each with its reason.
    """
    settings = load_settings()
    endpoints, policy, who = resolve_endpoints(settings), letter_policy(settings), by or _account()
    left = 0
    with database() as engine:
        numbers = _chosen(engine, ids, topic, error, since, all_)
        _require_topics(engine, numbers, endpoints.bootstrap_servers)
        try:
            with AckedPublisher(endpoints.bootstrap_servers, client_id="hindstream-dead-letters") as publisher:
                for some in _chunks(numbers):
                    with engine.begin() as connection:
                        settled = replay(connection, publisher, some, by=who, policy=policy)
                    left += _tell(settled)
        except (PublishFailed, KafkaError) as err:
            raise UserError(f"{err}; letters that are not told of above are still open, so try again") from None
    raise typer.Exit(_NOT_ALL if left else 0)


@app.command(name="drop")
def drop_(
    reason: Annotated[str, typer.Option(help="Why it is not needed.")],
    ids: Ids = None,
    topic: Topic = None,
    error: Error = None,
    since: Since = None,
    all_: All = False,
    by: By = None,
    purge: Annotated[
        bool, typer.Option("--purge", help="Delete the letters instead of marking them; the log still has the records.")
    ] = False,
) -> None:
    """Say that letters are not needed. They are kept, with the reason and who said so, and can still be replayed."""
    left, who = 0, by or _account()
    with database() as engine:
        for some in _chunks(_chosen(engine, ids, topic, error, since, all_)):
            with engine.begin() as connection:
                settled = drop(connection, some, by=who, reason=reason, purge=purge)
            left += _tell(settled)
    raise typer.Exit(_NOT_ALL if left else 0)


def _chosen(
    engine: Engine, ids: Sequence[int] | None, topic: str | None, error: str | None, since: str | None, all_: bool
) -> list[int]:
    filtered = topic is not None or error is not None or since is not None
    if ids and (all_ or filtered):
        raise UserError("give numbers, or --all with --topic, --error or --since, not both")
    if ids:
        return list(dict.fromkeys(ids))
    if not all_:
        raise UserError("which? Give their numbers, or --all, with --topic, --error or --since for fewer")
    with engine.connect() as connection:
        rows, _ = find(connection, Filter(topic=topic, error=error, since=moment(since), state="open"), None)
    return [row.dead_letter_id for row in sorted(rows, key=lambda row: (row.topic, row.partition, row.record_offset))]


def _require_topics(engine: Engine, numbers: Sequence[int], bootstrap_servers: str) -> None:
    """A broker may make a topic that somebody publishes to; a letter that never was on it must not have it do so."""
    with engine.connect() as connection:
        wanted = set(
            connection.exec_driver_sql(
                "SELECT DISTINCT topic FROM dead_letters WHERE dead_letter_id = ANY(%(ids)s)", {"ids": list(numbers)}
            ).scalars()
        )
    if not wanted:
        return
    try:
        admin = KafkaAdminClient(
            bootstrap_servers=bootstrap_servers, request_timeout_ms=_ANSWER_MS, bootstrap_timeout_ms=_ANSWER_MS
        )
        try:
            missing = wanted - set(admin.list_topics())
        finally:
            admin.close()
    except KafkaError as err:
        raise UserError(
            f"the broker {bootstrap_servers} does not answer ({type(err).__name__}); nothing is replayed"
        ) from None
    if missing:
        raise UserError(
            f"{', '.join(sorted(missing))} is no topic of the broker; what was read from files is mended there and "
            "imported again. Choose others with --topic, or drop these"
        )


def _tell(settled: Sequence[Settled]) -> int:
    """Print what came of each; how many were left as they are."""
    for one in sorted(settled, key=lambda one: one.dead_letter_id):
        print(f"{one.dead_letter_id}: {'' if one.done else 'left: '}{printable(one.words, 500)}")
    return sum(not one.done for one in settled)


def _chunks(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    for first in range(0, len(numbers), _AT_ONCE):
        yield numbers[first : first + _AT_ONCE]


def _account() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # an account without a name, as containers have
        return f"uid {os.getuid()}"
