"""What `previous_response_id` refers to: the newest responses, in memory.

A gateway that was restarted, or another one, does not know them; clients then send the conversation itself.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

_KEPT = 10_000
_MAX_BYTES = 256 << 20
"""Of all text that is kept: conversations share their messages, which are counted once a response, so in truth it is
less."""


@dataclass(frozen=True)
class Kept:
    """A response, and the conversation up to and including it as chat messages, without its instructions."""

    response: dict[str, Any]
    messages: list[dict[str, Any]]
    session_id: str
    size: int


class Conversations:
    """The newest responses by id. For one event loop."""

    def __init__(self, limit: int = _KEPT, max_bytes: int = _MAX_BYTES) -> None:
        self._limit = limit
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[str, Kept] = OrderedDict()

    def keep(self, kept: Kept) -> None:
        """Remember it under its own id; the oldest are forgotten where there are too many."""
        self._kept[kept.response["id"]] = kept
        self._bytes += kept.size
        while len(self._kept) > self._limit or (self._bytes > self._max_bytes and len(self._kept) > 1):
            self._bytes -= self._kept.popitem(last=False)[1].size

    def find(self, name: str) -> Kept | None:
        """The response with this id."""
        return self._kept.get(name)
