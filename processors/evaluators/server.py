"""One model server over HTTP: bounded in time and number, every fault told apart as passing or lasting."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import aiohttp
import msgspec

from processors.evaluators.config import ServerConfig
from processors.evaluators.limit import AdaptiveLimit, Paused

T = TypeVar("T")

_CONNECT_S = 5.0
"""A server that is up accepts in milliseconds, even a busy one."""
_TRANSIENT_STATUS = frozenset({408, 425})
"""Besides 5xx: too slow, too early. The same request may succeed later."""
_TOO_MANY, _UNAVAILABLE = 429, 503
_VERSION_S = 1.0
"""How long a served version is taken for current. Weights change every few seconds at most; a stale one only means
that an answer of the version before is asked for, or reused, under that version's name."""
_FAULT_CHARACTERS = 500


class ServerFault(RuntimeError):
    """A model server gave no answer: which server, what it said."""


class TransientFault(ServerFault):
    """The same request may succeed later: time-out, refused connection, cut answer, 5xx."""


class Overloaded(TransientFault):
    """The server has no room now and nothing is wrong with the request: 429, or 503 that says when to come back.
    `pause_s`: until then nobody of this process asks it."""

    def __init__(self, message: str, pause_s: float) -> None:
        super().__init__(message)
        self.pause_s = pause_s


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
        limit: shared by all clients of the same server; None: this is the only one.
    """

    def __init__(self, config: ServerConfig, http: aiohttp.ClientSession, limit: AdaptiveLimit | None = None) -> None:
        self.config = config
        self.limit = limit or AdaptiveLimit(config.concurrency)
        self._http = http
        self._asking_version = asyncio.Lock()
        self._timeout = aiohttp.ClientTimeout(total=config.timeout_s, sock_connect=_CONNECT_S)
        self._version: str | None = None
        self._version_until = 0.0
        self.constrains = True
        """Whether it takes `structured_outputs`; set False by whoever learns otherwise."""
        self.asked_as = config.model
        """The name in requests: of an adapter that is one version, `MODEL@VERSION`; records keep `model`."""
        self.scores_ids: bool | None = None
        """Whether it scores any ids beside a prompt; set by whoever learns it."""

    @property
    def model(self) -> str:
        return self.config.model

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """POST JSON, get a JSON object.

        Raises:
            Overloaded: the server has no room now.
            TransientFault: no whole answer in time.
            PermanentFault: the server refuses this request.
        """
        where = f"POST {self.config.url}{path}"
        try:
            async with self.limit.slot() as began:
                return self._read(where, *await self._send("POST", path, body, began), began)
        except Paused as pause:
            raise Overloaded(f"{where}: not asked {pause}", pause.pause_s) from None

    async def post_as(self, path: str, body: dict[str, Any], kind: type[T]) -> T:
        """As `post`, and the answer becomes a `kind`: what that does not name is passed over unread."""
        where = f"POST {self.config.url}{path}"
        try:
            async with self.limit.slot() as began:
                status, retry_after, raw = await self._send("POST", path, body, began)
                self._check(where, status, retry_after, raw, began)
        except Paused as pause:
            raise Overloaded(f"{where}: not asked {pause}", pause.pause_s) from None
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.DecodeError as err:
            raise TransientFault(f"{where}: the answer cannot be read ({err})") from err

    async def get(self, path: str) -> dict[str, Any]:
        """GET a JSON object; light enough to need no slot. Raises as `post`."""
        return self._read(f"GET {self.config.url}{path}", *await self._send("GET", path, None, None), None)

    async def version(self) -> str | None:
        """The weight version tag that is served now; None where the server does not say (its weights are then taken
        as fixed).

        Raises:
            TransientFault: no answer.
        """
        async with self._asking_version:  # light enough to need no slot, and one answer does for all
            if time.monotonic() >= self._version_until:
                where = f"GET {self.config.url}/weight_info"
                try:
                    said = self._read(where, *await self._send("GET", "/weight_info", None, None), None)
                    self._version = str(said.get("weight_version"))
                    self._version_until = time.monotonic() + _VERSION_S
                except PermanentFault:  # not vLLM, or without its development endpoints
                    self._version = None
                    self._version_until = float("inf")
            return self._version

    async def _send(
        self, method: str, path: str, body: dict[str, Any] | None, began: float | None
    ) -> tuple[int, str | None, bytes]:
        """Status, Retry-After and body of an answer. The limit hears of a time-out where `began` is given."""
        where = f"{method} {self.config.url}{path}"
        headers = {"authorization": f"Bearer {self.config.api_key}"} if self.config.api_key else None
        try:
            async with self._http.request(
                method, f"{self.config.url}{path}", json=body, headers=headers, timeout=self._timeout
            ) as response:
                return response.status, response.headers.get("retry-after"), await response.read()
        except aiohttp.ConnectionTimeoutError as err:  # it is away, which is no sign of too much work
            raise TransientFault(f"{where}: {type(err).__name__}: {err}") from err
        except TimeoutError as err:
            fault = TransientFault(f"{where}: no answer within {self.config.timeout_s:g} s")
            if began is not None:
                self.limit.timed_out(began, str(fault))
            raise fault from err
        except aiohttp.ClientError as err:
            raise TransientFault(f"{where}: {type(err).__name__}: {err}") from err

    def _read(
        self, where: str, status: int, retry_after: str | None, raw: bytes, began: float | None
    ) -> dict[str, Any]:
        """The JSON object of an answer, or the fault that it is; where `began` is given, the limit hears which."""
        self._check(where, status, retry_after, raw, began)
        try:
            plain = json.loads(raw)
        except ValueError as err:
            raise TransientFault(f"{where}: the answer is no JSON ({err})") from err
        if not isinstance(plain, dict):
            raise TransientFault(f"{where}: the answer is a JSON {type(plain).__name__}, not an object")
        return plain

    def _check(self, where: str, status: int, retry_after: str | None, raw: bytes, began: float | None) -> None:
        if status in (_TOO_MANY, _UNAVAILABLE):
            fault = f"{where}: {status} {_said(raw)}"
            told_s = _seconds(retry_after)
            if began is not None:
                # A 503 without a time may be a server that is away: its work waits by its own attempts.
                self.limit.refused(began, fault, 0.0 if status == _UNAVAILABLE and told_s is None else told_s)
            if status == _UNAVAILABLE and told_s is None:
                raise TransientFault(fault)
            raise Overloaded(fault, self.limit.pause_s)
        if began is not None:
            self.limit.answered(began)
        if status >= 500 or status in _TRANSIENT_STATUS:
            raise TransientFault(f"{where}: {status} {_said(raw)}")
        if status >= 400:
            raise PermanentFault(f"{where}: {status} {_said(raw)}", status)


def _seconds(retry_after: str | None) -> float | None:
    """What a Retry-After header says (RFC 9110 §10.2.3: seconds, or a date); None where it says nothing readable."""
    if retry_after is None:
        return None
    try:
        return max(0.0, float(int(retry_after)))
    except ValueError:
        pass
    try:
        until = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    return max(0.0, (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def _said(raw: bytes) -> str:
    """What an error answer says, without its wrapping."""
    text = raw.decode("utf-8", errors="replace")
    try:
        message = json.loads(text)["error"]["message"]
        text = message if isinstance(message, str) else text
    except (ValueError, KeyError, TypeError):
        pass
    return text[:_FAULT_CHARACTERS]
