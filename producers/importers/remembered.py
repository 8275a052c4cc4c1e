"""What an agent still remembers that forgets events one by one, as OpenHands does."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Any


class Remembered:
    """The messages of the context, each with the ids of the events that it was made of."""

    def __init__(self) -> None:
        self._kept: list[tuple[frozenset[Hashable], dict[str, Any]]] = []

    def add(self, ids: Collection[Hashable], message: dict[str, Any] | None) -> None:
        """One more message at the end."""
        if message is not None:
            self._kept.append((frozenset(ids), message))

    def forget(self, ids: Collection[Hashable], summary: str | None, offset: Any) -> list[dict[str, Any]]:
        """Leave out what was made of these events alone, and put the summary in its place.

        Args:
            ids: the events forgotten.
            summary: what stands for them, if anything.
            offset: at which message it stands; anything but a number in range means the end.
        """
        gone = frozenset(ids)
        self._kept = [(made_of, message) for made_of, message in self._kept if not made_of or not made_of <= gone]
        if summary:
            at = offset if type(offset) is int and 0 <= offset <= len(self._kept) else len(self._kept)
            self._kept.insert(at, (frozenset(), {"role": "user", "content": summary}))
        return [message for _, message in self._kept]
