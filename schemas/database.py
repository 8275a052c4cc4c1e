"""The one way to Postgres: an engine with time limits, and which of its errors mean "try again"."""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, TimeoutError

from schemas.lists import dump_lists_quickly

_CONNECT_S = 5
"""A server that is up answers in milliseconds; one that is away should be told and retried, not waited for."""
_STATEMENT_MS = 60_000
"""Our largest statement writes a batch of events in tens of milliseconds. A minute means that something holds a lock:
the statement is cancelled and the whole transaction tried again, instead of an agent that hangs without a word."""
IDLE_IN_TRANSACTION_MS = 60_000
"""A worker that is stopped in the middle of a transaction (SIGSTOP, a swapped-out machine) holds its session locks and
so stops every other worker; after a minute the server ends it and its work is rolled back."""
_TCP_USER_TIMEOUT_MS = 20_000
"""A database host that vanished sends nothing; without this the kernel waits up to two hours before it says so."""

_TRANSIENT_CLASSES = {"08", "40", "53", "55", "57", "58"}
"""SQLSTATE classes that pass: connection, rollback (deadlock, serialization), resources, locks, shutdown, system."""
_TRANSIENT_STATES = {"25006"}
"""25006: the server is read-only for now, as a replica is until it is promoted."""
_REFUSED_CLASSES = {"22", "23", "54"}
"""SQLSTATE classes that are the row's own fault: bad data, a violated constraint, a value too large for an index.
Class 54 comes as an OperationalError, so it must be told from the transient ones or it is retried for ever."""
_NEVER_AT_CONNECT = ("authentication failed", "does not exist", "no pg_hba.conf entry", "invalid connection option")
"""Words of a refused connection (it carries no SQLSTATE) that no waiting mends."""


def make_engine(
    url: str,
    *,
    pool_size: int,
    application_name: str,
    idle_in_transaction_ms: int | None = IDLE_IN_TRANSACTION_MS,
    pre_ping: bool = False,
) -> Engine:
    """An engine for `url` (`postgresql+psycopg://...`) that keeps at most `pool_size` connections.

    Args:
        url: address of the database.
        pool_size: the most connections at once; who wants one more waits.
        application_name: what `pg_stat_activity` shows.
        idle_in_transaction_ms: how long a transaction may wait for us; None for one that holds a lock over a slow call
            to another server.
        pre_ping: whether a connection is tried before its use: for a process that asks once in minutes.
    """
    limits = {"statement_timeout": _STATEMENT_MS}
    if idle_in_transaction_ms is not None:
        limits["idle_in_transaction_session_timeout"] = idle_in_transaction_ms
    engine = create_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        pool_pre_ping=pre_ping,
        hide_parameters=True,  # they are what people said, and an error goes to the log
        json_serializer=to_json,
        json_deserializer=msgspec.json.decode,
        connect_args={
            "connect_timeout": _CONNECT_S,
            "application_name": application_name,
            "tcp_user_timeout": _TCP_USER_TIMEOUT_MS,
            "options": " ".join(f"-c {name}={value}" for name, value in limits.items()),
        },
    )
    event.listen(engine, "connect", lambda connection, _: dump_lists_quickly(connection))
    return engine


def to_json(value: Any) -> str:
    """JSON for a JSONB column; a NaN becomes null, since JSON has none."""
    return msgspec.json.encode(value).decode("utf-8")


def is_transient(error: BaseException) -> bool:
    """Whether the same work may succeed later without anybody's help."""
    if isinstance(error, TimeoutError):  # every connection of the pool is in use
        return True
    if not isinstance(error, DBAPIError):
        return False
    state = sqlstate(error)
    if state is None:
        return isinstance(error.orig, (psycopg.OperationalError, psycopg.InterfaceError)) and not any(
            words in str(error.orig) for words in _NEVER_AT_CONNECT
        )
    return state in _TRANSIENT_STATES or state[:2] in _TRANSIENT_CLASSES


def is_refused(error: BaseException) -> bool:
    """Whether the database, or the driver on its behalf, refused the data itself: the same rows will never get in."""
    state = sqlstate(error)
    if state is None:
        return isinstance(error, DBAPIError) and isinstance(error.orig, psycopg.DataError)
    return state[:2] in _REFUSED_CLASSES


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of a database error; None where it carries none, as when the connection broke."""
    original = error.orig if isinstance(error, DBAPIError) else error
    return original.sqlstate if isinstance(original, psycopg.Error) else None


def in_words(error: BaseException) -> str:
    """One line about a database error, without the statement and its parameters."""
    original = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    lines = str(original).strip().splitlines() or ["no message"]
    return f"{type(original).__name__}: {lines[0]}"
