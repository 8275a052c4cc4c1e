"""One model server over HTTP: bounded in time and number, every fault told apart as passing or lasting."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import aiohttp

from processors.evaluators.config import ServerConfig

_CONNECT_S = 5.0
"""A server that is up accepts in milliseconds, even a busy one."""
_TRANSIENT_STATUS = frozenset({408, 425, 429})
"""Besides 5xx: too slow, too early, too many. The same request may succeed later."""
_VERSION_S = 1.0
"""How long a served version is taken for current. Weights change every few seconds at most; a stale one only means
that an answer of the version before is asked for, or reused, under that version's name."""
_FAULT_CHARACTERS = 500


class ServerFault(RuntimeError):
    """A model server gave no answer: which server, what it said."""


class TransientFault(ServerFault):
    """The same request may succeed later: time-out, refused connection, cut answer, 5xx, 429."""


class PermanentFault(ServerFault):
    """The request itself is refused and always will be: the other 4xx."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ModelServer:
    """Client of one model server.

    Args:
        config: address, model, limits.
        http: a session that the caller closes.
    """

    def __init__(self, config: ServerConfig, http: aiohttp.ClientSession) -> None:
        self.config = config
        self._http = http
        self._slots = asyncio.Semaphore(config.concurrency)
        self._timeout = aiohttp.ClientTimeout(total=config.timeout_s, sock_connect=_CONNECT_S)
        self._version: str | None = None
        self._version_until = 0.0
        self.constrains = True
        """Whether it takes `structured_outputs`; set False by whoever learns otherwise."""

    @property
    def model(self) -> str:
        return self.config.model

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """POST JSON, get a JSON object.

        Raises:
            TransientFault: no whole answer in time.
            PermanentFault: the server refuses this request.
        """
        return await self._request("POST", path, body)

    async def version(self) -> str | None:
        """The weight version tag that is served now; None where the server does not say (its weights are then taken
        as fixed).

        Raises:
            TransientFault: no answer.
        """
        if time.monotonic() >= self._version_until:
            try:
                self._version = str((await self._request("GET", "/weight_info", None)).get("weight_version"))
                self._version_until = time.monotonic() + _VERSION_S
            except PermanentFault:  # not vLLM, or without its development endpoints
                self._version = None
                self._version_until = float("inf")
        return self._version

    async def _request(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        where = f"{method} {self.config.url}{path}"
        headers = {"authorization": f"Bearer {self.config.api_key}"} if self.config.api_key else None
        try:
            async with (
                self._slots,
                self._http.request(
                    method, f"{self.config.url}{path}", json=body, headers=headers, timeout=self._timeout
                ) as response,
            ):
                raw = await response.read()
                status = response.status
        except TimeoutError as err:
            raise TransientFault(f"{where}: no answer within {self.config.timeout_s:g} s") from err
        except aiohttp.ClientError as err:
            raise TransientFault(f"{where}: {type(err).__name__}: {err}") from err
        if status >= 500 or status in _TRANSIENT_STATUS:
            raise TransientFault(f"{where}: {status} {_said(raw)}")
        if status >= 400:
            raise PermanentFault(f"{where}: {status} {_said(raw)}", status)
        try:
            plain = json.loads(raw)
        except ValueError as err:
            raise TransientFault(f"{where}: the answer is no JSON ({err})") from err
        if not isinstance(plain, dict):
            raise TransientFault(f"{where}: the answer is a JSON {type(plain).__name__}, not an object")
        return plain


def _said(raw: bytes) -> str:
    """What an error answer says, without its wrapping."""
    text = raw.decode("utf-8", errors="replace")
    try:
        message = json.loads(text)["error"]["message"]
        text = message if isinstance(message, str) else text
    except (ValueError, KeyError, TypeError):
        pass
    return text[:_FAULT_CHARACTERS]
