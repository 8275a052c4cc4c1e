"""Work that waits out what passes by itself: a database that restarts, a deadlock, a broker that is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from processors.health import Health

T = TypeVar("T")

FIRST_WAIT_S = 0.1
"""A deadlock or a failed-over connection is over at once; the first try again should not be felt."""
LONGEST_WAIT_S = 5.0
"""While a server is away it is asked this often: five seconds late at most when it is back, and no storm meanwhile."""


async def until_done(
    attempt: Callable[[], Awaitable[T]],
    *,
    transient: Callable[[BaseException], bool],
    health: Health,
    part: str,
    in_words: Callable[[BaseException], str] = str,
) -> T:
    """The result of `attempt`, called again, ever more slowly, while it fails with something that passes.

    There is no last try: giving up would mean to skip the work. Cancelling is the way out. Any error that is not
    `transient` is raised at once.
    """
    wait = FIRST_WAIT_S
    while True:
        try:
            result = await attempt()
        except Exception as err:
            if not transient(err):
                raise
            health.waiting(part, in_words(err))
        else:
            health.ok(part)
            return result
        await asyncio.sleep(wait)
        wait = min(LONGEST_WAIT_S, wait * 2)
