"""HTTP to the policy's server, and every way in which it fails as one error that tells the caller what to hear."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import aiohttp
from aiohttp.client import _RequestContextManager as _RequestContext

from producers.gateway import json_io, sse
from schemas.depth import nested_deeply

_CONNECT_S = 5.0
"""A server that is there accepts within milliseconds; this is time for a few lost packets."""

_ABSENT = (404, 405)
"""What a server that does not have an endpoint answers."""


class UpstreamFailed(RuntimeError):
    """No answer: what to tell the caller.

    `status` and `error` are the caller's response. `refused` tells that the request was at fault and the policy was
    not asked; otherwise the turn is recorded as an error.
    """

    def __init__(self, status: int, error: dict[str, Any], *, refused: bool = False) -> None:
        super().__init__(f"{status}: {error.get('message')}")
        self.status = status
        self.error = error
        self.refused = refused


class Absent(UpstreamFailed):
    """404 or 405: the server has no such endpoint, or no such model. `endpoint`: it is the endpoint, since an API that
    has it would have said its error in its own form."""

    endpoint = False


class Http:
    """A session with one server. Use as `async with Http(...)`, and each call in `async with http.translated()`."""

    def __init__(self, url: str, *, api_key: str | None, timeout_s: float) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s
        self._client: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Http:
        # A stream may last; what is bounded is the wait for its next piece.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=self._timeout_s)
        connector = aiohttp.TCPConnector(limit=0)  # how many requests are in flight is the server's to bound
        self._client = aiohttp.ClientSession(headers=self._headers, timeout=timeout, connector=connector)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._client is not None:
            await self._client.close()

    async def get(self, path: str) -> dict[str, Any]:
        """The JSON object at `path`."""
        async with self._session().get(f"{self._url}{path}") as response:
            return await _read(response)

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON answer.

        Raises:
            UpstreamFailed: it is none.
            Absent: the server has no such endpoint, or no such model.
        """
        async with self._open(path, body) as response:
            return await _read(response)

    @asynccontextmanager
    async def events(self, path: str, body: dict[str, Any]) -> AsyncIterator[AsyncGenerator[str, None]]:
        """The data of the events that answer, as they come. Leaving it closes the connection, which ends the work.

        Raises:
            UpstreamFailed: no stream, or one that is cut, however late.
            Absent: the server has no such endpoint, or no such model.
        """
        async with self.translated(whole=False), self._open(path, body) as response:
            if response.status != 200 or response.content_type != "text/event-stream":
                await _read(response)
                raise failed(502, "the model server does not stream")
            async with aclosing(sse.data_of(response.content.iter_any())) as data:
                yield data

    @asynccontextmanager
    async def translated(self, *, whole: bool = True) -> AsyncIterator[None]:
        """Every way in which a server fails, as UpstreamFailed. `whole`: all must be done within the timeout."""
        try:
            async with asyncio.timeout(self._timeout_s if whole else None):
                yield
        except TimeoutError as err:
            raise failed(504, f"the model server did not answer within {self._timeout_s:g} s") from err
        except aiohttp.ClientError as err:
            raise failed(502, f"the model server does not answer ({type(err).__name__})") from err
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as err:
            raise failed(502, f"the model server's answer is not what it should be ({type(err).__name__})") from err

    def _open(self, path: str, body: dict[str, Any]) -> _RequestContext:
        headers = {"Content-Type": "application/json"}
        return self._session().post(f"{self._url}{path}", data=json_io.dumps_clean(body), headers=headers)

    def _session(self) -> aiohttp.ClientSession:
        if self._client is None:
            raise RuntimeError("Http is used outside `async with`")
        return self._client


async def _read(response: aiohttp.ClientResponse) -> dict[str, Any]:
    data = await response.read()
    try:
        plain = json_io.loads(data)
    except (ValueError, RecursionError):
        plain = None
    if nested_deeply(plain):
        plain = None
    if response.status == 200 and isinstance(plain, dict):
        return plain
    said = plain.get("error") if isinstance(plain, dict) else None
    message = said.get("message") if isinstance(said, dict) else None
    if response.status in (401, 403):
        # Not in the server's words: some quote the key, which is the gateway's and not for the caller.
        raise failed(502, f"the model server answered {response.status}: it refuses the gateway's own key")
    if response.status == 200 or not 400 <= response.status < 500:
        raise failed(502, f"the model server answered {response.status}: {message or 'no JSON object'}")
    error = said if isinstance(said, dict) else {"message": f"the model server refused: {response.status}"}
    if response.status in _ABSENT:
        absent = Absent(response.status, error, refused=True)
        absent.endpoint = not isinstance(said, dict)
        raise absent
    raise UpstreamFailed(response.status, error, refused=True)


def failed(status: int, message: str) -> UpstreamFailed:
    """The server is at fault, and the caller hears it with `status`."""
    return UpstreamFailed(status, {"message": message, "type": "upstream_error", "param": None, "code": status})
