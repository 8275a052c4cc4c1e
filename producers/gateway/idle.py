"""Closing connections on which no request comes, however slowly its bytes trickle in.

aiohttp bounds the wait between two requests, not that for the first, and any byte of a next request's head ends its
wait. So whoever sends a byte now and then would hold a connection, and a file descriptor, for ever.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

log = logging.getLogger(__name__)


class IdleConnections:
    """Which connections have waited for a whole request head for how long; put `middleware` outermost, run `watch`."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._busy: set[Any] = set()
        """Connections with a request in work; each has one at a time."""
        self._idle_since: dict[Any, float] = {}
        self.closed = 0

    def middleware(self) -> Middleware:
        """Notes which connections have a request in work."""

        @web.middleware
        async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
            connection = request.protocol
            self._busy.add(connection)
            try:
                return await handler(request)
            finally:
                self._busy.discard(connection)
                self._idle_since.pop(connection, None)

        return noted

    async def watch(self, server: web.Server) -> None:
        """Close what waits too long, until cancelled. A connection goes between once and twice its time."""
        while True:
            await asyncio.sleep(self._longest_s / 2)
            self._sweep(server.connections)

    def _sweep(self, connections: list[Any]) -> None:
        now, before = asyncio.get_running_loop().time(), self.closed
        idle = [connection for connection in connections if connection not in self._busy]
        self._idle_since = {connection: self._idle_since.get(connection, now) for connection in idle}
        for connection, since in self._idle_since.items():
            if now - since >= self._longest_s:
                connection.force_close()
                self.closed += 1
        if self.closed > before:
            log.info("%d connections closed: no whole request head came in %g s", self.closed - before, self._longest_s)
