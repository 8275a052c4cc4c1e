"""Events that come when their session has been erased: known by id and place, and nothing else of them is kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection

from processors.dead_letters import DeadLetter, Delivery
from processors.inserting import insert_new
from processors.storing import Item, event_row
from schemas import tables
from schemas.claim_check import BlobStore
from schemas.envelope import Event
from schemas.events import SessionClosed


def is_tombstone(event: Event) -> bool:
    """Whether the event says that its session is erased."""
    data = event.data
    return isinstance(data, SessionClosed) and data.reason == "erased"


def key_of(delivery: Delivery) -> str:
    """The session that the record's key names."""
    return (delivery.key or b"").decode("utf-8", errors="replace").replace("\x00", "")


def leave_out(connection: Connection, items: Sequence[Item], blobs: BlobStore | None) -> int:
    """Remember the events, and delete what their claim checks hold. Returns how many were not known before."""
    rows = [{**event_row(item), "left_out": True} for item in items]
    new = insert_new(connection, tables.events, rows, returning=("event_id",))
    if blobs is not None:
        for row in rows:
            if row["dataref"] is not None:
                blobs.delete(row["dataref"])
    return len(new)


def not_of(letters: Iterable[DeadLetter], erased: set[str]) -> list[DeadLetter]:
    """The letters without those of erased sessions, of which no copy is kept."""
    return [letter for letter in letters if key_of(letter.delivery) not in erased]
