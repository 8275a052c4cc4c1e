"""The learner's way to Postgres: an engine with time limits, and patience with what passes by itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event
from typing import TypeVar

import psycopg
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import DBAPIError

log = logging.getLogger(__name__)

T = TypeVar("T")

_CONNECT_S = 5
"""A server that is up answers in milliseconds; one that is away should be told and retried, not waited for."""
_TCP_USER_TIMEOUT_MS = 20_000
"""A database host that vanished sends nothing; without this the kernel waits up to two hours before it says so."""
_STATEMENT_MS = 60_000
"""The largest statement reads a micro-batch in milliseconds; a minute means that something holds a lock."""

_PASSING_CLASSES = {"08", "40", "53", "55", "57", "58"}
"""SQLSTATE classes that pass: connection, rollback (deadlock, serialization), resources, locks, shutdown, system."""
_NEVER_AT_CONNECT = ("authentication failed", "does not exist", "no pg_hba.conf entry", "invalid connection option")
"""Words of a refused connection (it carries no SQLSTATE) that no waiting mends."""

_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 5.0
"""While a server is away it is asked this often: five seconds late at most when it is back, and no storm meanwhile."""


class Stopped(Exception):
    """The stop was asked for while waiting for something outside."""


def make_engine(url: str, application_name: str) -> Engine:
    """An engine for `url` (`postgresql+psycopg://...`); `application_name` is what `pg_stat_activity` shows."""
    return create_engine(
        url,
        pool_size=2,
        hide_parameters=True,
        pool_pre_ping=True,
        connect_args={
            "connect_timeout": _CONNECT_S,
            "application_name": application_name,
            "tcp_user_timeout": _TCP_USER_TIMEOUT_MS,
            "options": f"-c statement_timeout={_STATEMENT_MS}",
        },
    )


def in_transaction(engine: Engine, stop: Event, work: Callable[[Connection], T]) -> T:
    """`work(connection)`, committed; tried again, ever more slowly, while the database is away.

    The answer to a commit can be lost, so `work` must find out whether it was done already.

    Raises:
        Stopped: `stop` was set meanwhile.
        SQLAlchemyError: the database refuses for a reason that does not pass.
    """
    wait = _FIRST_WAIT_S
    while True:
        try:
            with engine.begin() as connection:
                return work(connection)
        except DBAPIError as err:
            if not _passes(err):
                raise
            log.warning("waiting for the database: %s", in_words(err))
        if stop.wait(wait):
            raise Stopped
        wait = min(_LONGEST_WAIT_S, wait * 2)


def in_words(error: BaseException) -> str:
    """One line about a database error, without the statement and its parameters."""
    original = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    lines = str(original).strip().splitlines() or ["no message"]
    return f"{type(original).__name__}: {lines[0]}"


def _passes(error: DBAPIError) -> bool:
    original = error.orig
    state = original.sqlstate if isinstance(original, psycopg.Error) else None
    if state is None:
        broken = isinstance(original, (psycopg.OperationalError, psycopg.InterfaceError))
        return broken and not any(words in str(original) for words in _NEVER_AT_CONNECT)
    return state[:2] in _PASSING_CLASSES
