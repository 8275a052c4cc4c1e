"""Waiting as services wait: never longer than until they are asked to stop, and longer after each fault."""

from __future__ import annotations

import asyncio
import contextlib

from processors.health import Health
from processors.retrying import FIRST_WAIT_S, LONGEST_WAIT_S


class Pause:
    """Waits of one service, `part`, that end when `stop` is set; after a fault they grow and its health says why."""

    def __init__(self, stop: asyncio.Event, health: Health, part: str) -> None:
        self._stop, self._health, self._part = stop, health, part
        self._next_s = FIRST_WAIT_S

    @property
    def stopped(self) -> bool:
        """Whether the service was asked to stop."""
        return self._stop.is_set()

    async def wait(self, seconds: float) -> None:
        """Wait, unless asked to stop."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    async def after_fault(self, fault: str) -> None:
        """Tell the fault, which passes by itself, and wait before the next try."""
        self._health.waiting(self._part, fault)
        await self.wait(self._next_s)
        self._next_s = min(self._next_s * 2, LONGEST_WAIT_S)

    def succeeded(self) -> None:
        """All is well, and the next fault is a first one again."""
        self._health.ok(self._part)
        self._next_s = FIRST_WAIT_S
