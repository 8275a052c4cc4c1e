"""Canonical JSON of clean text, the messages of a conversation each written once."""

from __future__ import annotations

from typing import Any

import msgspec

from schemas.digests import clean_json
from schemas.events import TurnRecorded

_ONCE_BYTES = 32 << 20
"""JSON of messages kept at once: a conversation of tens of megabytes. Turns that share no message, as an archive gives
them, would otherwise keep all of theirs until the session ends."""


class EncodedOnce:
    """The messages of one session as JSON, each written once however many turns carry it: the turns of a conversation
    of n messages carry n² of them.

    For a caller that changes no message once it has given it away; they are told apart by identity.
    """

    def __init__(self) -> None:
        self._session: str | None = None
        # The messages are kept too: as long as they live, no other object has their identity.
        self._known: dict[int, tuple[Any, msgspec.Raw | None]] = {}
        self._bytes = 0

    def messages_of(self, turn: TurnRecorded) -> list[msgspec.Raw] | None:
        """Each message as canonical JSON; None where the text of one is to be replaced."""
        if turn.session_id != self._session or self._bytes > _ONCE_BYTES:
            self._session, self._known, self._bytes = turn.session_id, {}, 0
        parts = []
        for message in turn.messages:
            known = self._known.get(id(message))
            if known is None:
                value = clean_json(message)
                known = message, None if value is None else msgspec.Raw(value)
                self._known[id(message)] = known
                self._bytes += len(value or b"")
            if known[1] is None:
                return None
            parts.append(known[1])
        return parts
