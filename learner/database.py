"""The learner's way to Postgres: transactions with patience for what passes by itself."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from schemas import database

log = logging.getLogger(__name__)

T = TypeVar("T")

_CONNECTIONS = 2
"""One for the step or the load in hand, one for what runs beside it."""
_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 5.0
"""While a server is away it is asked this often: five seconds late at most when it is back, and no storm meanwhile."""


class Stopped(Exception):
    """The stop was asked for while waiting for something outside."""


def make_engine(url: str, application_name: str) -> Engine:
    """An engine for `url` (`postgresql+psycopg://...`); `application_name` is what `pg_stat_activity` shows.

    A load of weights, which may take minutes, happens in the transaction that holds its server's lock.
    """
    return database.make_engine(
        url,
        pool_size=_CONNECTIONS,
        application_name=application_name,
        idle_in_transaction_ms=None,
        pre_ping=True,
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
        except SQLAlchemyError as err:
            if not database.is_transient(err):
                raise
            log.warning("waiting for the database: %s", database.in_words(err))
        if stop.wait(wait):
            raise Stopped
        wait = min(_LONGEST_WAIT_S, wait * 2)
