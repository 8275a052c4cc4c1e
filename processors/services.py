"""Services side by side in one event loop: each runs until it is told to stop, and one that fails stops all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from processors.health import Health

Service = Callable[[asyncio.Event], Awaitable[None]]
"""Runs until the event is set, then finishes what it holds and returns. Raising means that it cannot go on."""

_log = logging.getLogger(__name__)


async def run_together(services: Mapping[str, Service], stop: asyncio.Event, *, grace_s: float, health: Health) -> bool:
    """Run `services` until `stop` is set or one fails; then stop all. Returns whether none failed.

    A service that has not finished `grace_s` seconds after the stop is cancelled: whatever it held is given up as a
    crash would, and taken up again by whoever comes next.
    """
    tasks: dict[asyncio.Future[None], str] = {
        asyncio.ensure_future(service(stop)): name for name, service in services.items()
    }
    stopping = asyncio.ensure_future(_set(stop))
    done, _ = await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
    healthy = all(_ended_well(task, tasks[task], stop, health) for task in done if task is not stopping)
    stop.set()
    await stopping
    finished, late = await asyncio.wait(tasks, timeout=grace_s)
    for task in late:
        _log.warning("%s did not finish within %.0f s and is cancelled", tasks[task], grace_s)
        task.cancel()
    if late:
        await asyncio.wait(late)
    late_faults = [_ended_well(task, tasks[task], stop, health) for task in finished - done]
    return healthy and all(late_faults)


async def _set(event: asyncio.Event) -> None:
    await event.wait()


def _ended_well(task: asyncio.Future[None], name: str, stop: asyncio.Event, health: Health) -> bool:
    fault = None if task.cancelled() else task.exception()
    if fault is not None:
        _log.error("%s failed", name, exc_info=fault)
        health.failed(name, f"{type(fault).__name__}: {fault}")
        return False
    if not stop.is_set():
        _log.error("%s ended without being told to", name)
        health.failed(name, "ended without being told to")
        return False
    return True
