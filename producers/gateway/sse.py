"""Server-sent events, in and out: https://html.spec.whatwg.org/multipage/server-sent-events.html."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from producers.gateway import json_io

DONE = "[DONE]"
"""The data that ends a stream in OpenAI's dialect."""

HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Of a response that streams. The last one tells proxies of nginx's kind not to collect it first."""

_MAX_EVENT = 16 << 20
"""Bytes of one event. The largest is the first of an answer that shows 128k prompt ids, about a mebibyte."""


async def data_of(pieces: AsyncIterator[bytes]) -> AsyncGenerator[str, None]:
    """The data of each event, as soon as it is whole. Names, ids and comments are skipped; an event that the end of the
    stream cut is dropped, as the standard says.

    Raises:
        ValueError: an event is over 16 MiB, or no UTF-8.
    """
    rest = b""
    data: list[str] = []
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            text = line.rstrip(b"\r")
            if not text and data:
                yield "\n".join(data)
                data = []
            elif text.startswith(b"data:"):
                data.append(text[5:].removeprefix(b" ").decode("utf-8"))
        if len(rest) > _MAX_EVENT or sum(map(len, data)) > _MAX_EVENT:
            raise ValueError(f"an event of the stream is over {_MAX_EVENT} bytes")


def event(data: dict[str, Any] | str, name: str | None = None) -> bytes:
    """One event on the wire; `name` is its type, which Anthropic's and the Responses dialect give."""
    # A lone surrogate is no UTF-8; JSON's own escapes never make one out of the other.
    text = data.encode("utf-8", "replace") if isinstance(data, str) else json_io.dumps_clean(data)
    head = b"event: %s\n" % name.encode("ascii") if name is not None else b""
    return b"%sdata: %s\n\n" % (head, text)


def comment(text: str) -> bytes:
    """A comment, which clients skip."""
    return f": {text}\n\n".encode()
