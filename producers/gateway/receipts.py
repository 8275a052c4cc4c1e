"""Where turns are recorded, for those who ask afterwards: by turn id, or by the id of the answer that they got."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from producers.gateway.access.callers import public
from producers.gateway.recorder import Recorded

_KEPT = 20_000
"""Ids that are remembered, two of most turns, at about 500 bytes each. Older turns are in the database."""


@dataclass(frozen=True)
class Receipt:
    """The turns of one request; `recording` is done when it is known where they are."""

    session_id: str
    turn_ids: list[str]
    recording: asyncio.Future[Recorded]

    async def settled(self) -> Recorded:
        """Where they are, once that is so. Cancelling the wait cancels no recording."""
        return await asyncio.shield(self.recording)

    @property
    def recorded(self) -> str:
        """`true`, `spooled`, `false`, `off`, or `pending` while that is not known."""
        return self.recording.result() if self.recording.done() and not self.recording.cancelled() else "pending"

    def headers(self) -> dict[str, str]:
        """What the caller is told; several turn ids are in the order of the choices."""
        return {
            "X-Session-Id": public(self.session_id),
            "X-Turn-Id": ",".join(self.turn_ids),
            "X-Hindstream-Recorded": self.recorded,
        }

    def plain(self) -> dict[str, object]:
        """The same as JSON."""
        return {"session_id": public(self.session_id), "turn_ids": self.turn_ids, "recorded": self.recorded}


class Receipts:
    """The receipts of the newest turns. For one event loop."""

    def __init__(self, limit: int = _KEPT) -> None:
        self._limit = limit
        self._kept: OrderedDict[str, Receipt] = OrderedDict()

    def keep(self, receipt: Receipt, completion_id: str | None) -> None:
        """Remember it under its turn ids and the id of the answer."""
        for name in (*receipt.turn_ids, *([completion_id] if completion_id else [])):
            self._kept[name] = receipt
            self._kept.move_to_end(name)
        while len(self._kept) > self._limit:
            self._kept.popitem(last=False)

    def find(self, name: str) -> Receipt | None:
        """The receipt of a turn id or an answer's id."""
        return self._kept.get(name)
