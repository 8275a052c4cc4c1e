"""The guard before every path: who has no key is told so before his request is read."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from producers.gateway.access.callers import CALLER, Access, Caller
from producers.gateway.access.ring import KeyRing
from producers.gateway.access.store import read_keys
from producers.gateway.replying import told
from schemas.database import make_engine

OPEN_PATHS = ("/healthz", "/readyz")
"""What orchestrators ask; they say how the gateway is, and nothing of anybody's."""

_REFRESH_S = 2.0
"""A revoked key opens nothing after this, and the query is two indexed reads."""

_MAX_KEY = 512
"""Longer is no key of ours; aiohttp bounds a header at 8 kB anyway."""


class NoKeys(RuntimeError):
    """The gateway would listen to others than this machine, and nobody needs a key."""


class Guard:
    """Decides who may ask.

    Args:
        access: see `Access`.
        host: where the gateway listens.
        database_url: where keys are kept; None: there is none, hence no key.
        copy: the file for what was known last.
    """

    def __init__(self, access: Access, host: str, database_url: str | None, copy: Path) -> None:
        self._access = access
        self._host = host
        self._engine = (
            make_engine(database_url, pool_size=1, application_name="hindstream-gateway-keys", pre_ping=True)
            if database_url is not None and access != "open"
            else None
        )
        self.ring = KeyRing(partial(read_keys, self._engine) if self._engine is not None else None, copy)

    async def running(self, app: web.Application) -> AsyncIterator[None]:
        """Keep the keys current while the application runs.

        Raises:
            NoKeys: it would be open to others than this machine.
        """
        await asyncio.to_thread(self.ring.refresh)
        if self._access == "auto" and self.ring.known and not self.ring.exist and not is_loopback(self._host):
            raise NoKeys(
                f"the gateway would listen at {self._host} and nobody has made a key, so anyone who reaches it could "
                "use it: make one with `hindstream keys create --tenant NAME`, or set HINDSTREAM_GATEWAY__ACCESS=open"
            )
        task = asyncio.ensure_future(self._refreshing())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        if self._engine is not None:
            self._engine.dispose()

    async def _refreshing(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            await asyncio.to_thread(self.ring.refresh)

    @property
    def _asks(self) -> bool:
        """Whether a key is needed."""
        if self._access != "auto":
            return self._access == "keys"
        return self.ring.exist or not self.ring.known or not is_loopback(self._host)

    def middleware(self) -> Middleware:
        """The application's middleware."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path in OPEN_PATHS:
                return await handler(request)
            if self._asks:
                caller = self._caller(request)
                if caller is None:
                    return self._refused(request)
                request[CALLER] = caller
            return await handler(request)

        return guarded

    def _caller(self, request: web.Request) -> Caller | None:
        key = _key(request)
        return self.ring.caller(key) if key is not None and len(key) <= _MAX_KEY else None

    def _refused(self, request: web.Request) -> web.StreamResponse:
        if not self.ring.known:
            error: dict[str, object] = {
                "message": "the gateway has not been able to read its keys yet; try again",
                "type": "server_error",
            }
            return told(request, 503, error, {"Retry-After": "2"})
        said = "is not one of this gateway's keys, or has expired or been revoked" if _key(request) else "is missing"
        error = {
            "message": f"the key {said}; send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
            "type": "invalid_request_error",
            "code": "invalid_api_key",
        }
        return told(request, 401, error, {"WWW-Authenticate": "Bearer"})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _key(request: web.Request) -> str | None:
    """The key that the request carries, as OpenAI's clients send it or as Anthropic's do."""
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return request.headers.get("x-api-key", "").strip() or None
