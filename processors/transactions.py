"""Database work off the event loop: a function of a connection, in a transaction of its own, in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine

P = ParamSpec("P")
T = TypeVar("T")


class Transactions:
    """Runs functions in transactions of `engine`, at most `threads` at once, so that they never wait for a
    connection that the others of the process hold for long.

    A caller that is cancelled does not cancel its transaction: that commits or rolls back in its thread.
    """

    def __init__(self, engine: Engine, *, threads: int, name: str) -> None:
        self._engine = engine
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def run(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`work(connection, ...)`, committed; rolled back if it raises."""

        def in_transaction() -> T:
            with self._engine.begin() as connection:
                return work(connection, *args, **kwargs)

        return await asyncio.get_running_loop().run_in_executor(self._pool, in_transaction)

    def close(self) -> None:
        """Wait for what is running."""
        self._pool.shutdown()
