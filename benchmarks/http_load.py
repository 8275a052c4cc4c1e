"""Requests over many connections and how long each took, by a client that costs little: sockets, no HTTP library."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from urllib.parse import urlsplit

_PATH = "/v1/chat/completions"
_SYSTEM = "You help. Be brief, be right, and say so where you do not know. " * 8


@dataclass
class Load:
    """What was measured: seconds of each request, seconds to each first byte of a body, and of the whole."""

    latencies_s: list[float] = field(default_factory=list)
    first_bytes_s: list[float] = field(default_factory=list)
    elapsed_s: float = 0.0

    @property
    def requests_per_s(self) -> float:
        """Requests that were answered, a second."""
        return len(self.latencies_s) / self.elapsed_s


def quantile(values: list[float], q: float) -> float:
    """The smallest value that at least the share `q` does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


async def load(url: str, *, connections: int, requests: int, streamed: bool, every_s: float = 0.0, name: str) -> Load:
    """`requests` questions over `connections` connections, each one asking again as soon as it is answered, but not
    more often than once in `every_s`. Each question is a session of its own, called after `name`.

    Raises:
        RuntimeError: an answer was no 200, or a connection was closed.
    """
    made, numbers = Load(), count()
    loop = asyncio.get_running_loop()
    began = loop.time()
    address = urlsplit(url)
    host, port = address.hostname or "", address.port or 80

    async def ask(place: int) -> None:
        _, connection = await loop.create_connection(_Client, host, port)
        await asyncio.sleep(every_s * place / connections)
        while (number := next(numbers)) < requests:
            asked_at = loop.time()
            first_at = await connection.ask(_request(address.netloc, name, number, streamed=streamed))
            ended_at = loop.time()
            made.latencies_s.append(ended_at - asked_at)
            made.first_bytes_s.append(first_at - asked_at)
            await asyncio.sleep(max(0.0, asked_at + every_s - ended_at))
        connection.close()

    await asyncio.gather(*(ask(place) for place in range(connections)))
    made.elapsed_s = loop.time() - began
    return made


def _request(host: str, name: str, number: int, *, streamed: bool) -> bytes:
    plain = {
        "model": "policy",
        "messages": [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": f"Question {number}: what is a rainbow?"},
        ],
        "stream": streamed,
    }
    body = json.dumps(plain).encode()
    head = (
        f"POST {_PATH} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"X-Session-Id: {name}-{number}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Client(asyncio.Protocol):
    """One connection, one question at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._answered: asyncio.Future[float] | None = None
        self._first_at = 0.0
        self._ends: Callable[[], bool] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(RuntimeError(f"the connection was closed in an answer: {exc}"))

    async def ask(self, request: bytes) -> float:
        """When the first byte of the answer's body came."""
        assert self._transport is not None
        self._answered = self._loop.create_future()
        self._ends, self._first_at = None, 0.0
        self._buffer.clear()
        self._transport.write(request)
        return await self._answered

    def close(self) -> None:
        """Close the connection."""
        assert self._transport is not None
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        if self._ends is None:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            self._ends = self._end_of(bytes(buffer[:end]).lower(), end + 4)
        if not self._first_at and len(buffer) > buffer.find(b"\r\n\r\n") + 4:
            self._first_at = self._loop.time()
        assert self._answered is not None
        if self._ends() and not self._answered.done():
            self._answered.set_result(self._first_at)

    def _end_of(self, head: bytes, body_at: int) -> Callable[[], bool]:
        assert self._answered is not None
        if not head.startswith(b"http/1.1 200"):
            self._answered.set_exception(RuntimeError(f"answered {head[:60]!r}"))
        if b"transfer-encoding: chunked" in head:
            return lambda: self._buffer.endswith(b"\r\n0\r\n\r\n")
        length = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        return lambda: len(self._buffer) >= body_at + length
