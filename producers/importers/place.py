"""A place in a conversation, and what was said on the way to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Place:
    """Where a conversation stands after a row. `turn` is the number of the latest turn on the way here.

    `lost` says that the policy may have answered between that turn and here without a row to show for it (a row that
    could not be read, a request that was interrupted): what a person says next is no judgement of the older turn.
    """

    above: Place | None = None
    message: Message | None = None
    turn: int | None = None
    lost: bool = False
    answered: bool = False
    """The row here is an answer of the policy itself."""
    replaced: tuple[Message, ...] | None = None
    """What the context became here, where it was compacted: nothing above counts any more."""

    def context(self) -> list[Message]:
        """The messages that a request from here sends, oldest first."""
        found: list[Message] = []
        place: Place | None = self
        while place is not None:
            if place.message is not None:
                found.append(place.message)
            if place.replaced is not None:
                found.extend(reversed(place.replaced))
                break
            place = place.above
        return found[::-1]

    def said_since(self, earlier: Place) -> list[Message]:
        """What was said after `earlier` on the way here, oldest first, also if the context was replaced meanwhile."""
        found: list[Message] = []
        place: Place | None = self
        while place is not None and place is not earlier:
            if place.message is not None:
                found.append(place.message)
            place = place.above
        return found[::-1]
