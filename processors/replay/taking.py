"""Taking turns into a replay: facts that the database lacks are recorded, and each taken turn gets a sample."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from processors.dead_letters import Delivery
from processors.inserting import insert_new
from processors.linking import link
from processors.recording import record
from processors.replay import progress
from processors.replay.selection import Selection
from processors.sessions import lock_sessions
from processors.trainable import NEVER_JUDGED, untrainable
from schemas import tables
from schemas.claim_check import BlobStore
from schemas.digests import sample_id
from schemas.envelope import MalformedEvent, decode
from schemas.events import TurnRecorded

_TURN = re.compile(rb"hindstream\.turn\.recorded\.v\d+")

OFF_POLICY = frozenset({"unknown_version"})
"""Reasons against live training that are none against a replay: it trains what an older policy said, and shows how far
off the samples are instead of comparing versions."""


@dataclass(frozen=True)
class Numbered:
    """A delivery and its place in the order in which the replay reads its log."""

    delivery: Delivery
    order: int


def take(
    connection: Connection,
    run: str,
    batch: Sequence[Numbered],
    selection: Selection,
    next_: Mapping[int, int],
    *,
    log: str,
    blobs: BlobStore | None = None,
) -> int:
    """Take what `selection` wants of `batch` into the run, in the caller's transaction, and remember that the offsets
    before `next_` are done. Returns how many turns were taken; taking the same again takes none.

    What the database knows already is not read a second time; what it lacks is recorded as any worker would.

    Raises:
        OSError: a claim check could not be fetched for a reason that may pass.
    """
    wanted = [one for one in batch if selection.takes(_session(one.delivery))]
    unknown = _unknown(connection, [one.delivery for one in wanted])
    if unknown:
        record(connection, unknown, blobs=blobs, log=log)
    rows = [row for one in wanted if (row := _sample(run, one, blobs)) is not None]
    # In one order, so that two replays of one log cannot wait for each other's rows.
    lock_sessions(connection, (row["session_id"] for row in rows))
    known = _recorded(connection, [row["turn_id"] for row in rows])
    new = insert_new(connection, tables.samples, [row for row in rows if row["turn_id"] in known], returning=("run",))
    link(connection, {row["session_id"] for row in rows})
    progress.advance(connection, run, next_, len(new))
    return len(new)


def _session(delivery: Delivery) -> str:
    return (delivery.key or b"").decode("utf-8", "surrogateescape")


def _unknown(connection: Connection, deliveries: Sequence[Delivery]) -> list[Delivery]:
    """Those whose (source, id) no event has; records without either go to the recorder, which says why not."""
    ids = [(_header(one, b"source"), _header(one, b"id")) for one in deliveries]
    found = connection.exec_driver_sql(
        "SELECT source, event_id FROM events "
        "JOIN unnest(%(sources)s::text[], %(ids)s::text[]) AS wanted(source, event_id) USING (source, event_id)",
        {"sources": [source for source, _ in ids], "ids": [event_id for _, event_id in ids]},
    )
    known = {(source, event_id) for source, event_id in found}
    return [one for one, key in zip(deliveries, ids, strict=True) if key not in known]


def _header(delivery: Delivery, name: bytes) -> str | None:
    wanted = f"ce_{name.decode()}"
    data = next((value for key, value in delivery.headers if key == wanted), None)
    try:
        text = data.decode("utf-8") if data is not None else None
    except UnicodeDecodeError:
        return None
    return text if text and "\x00" not in text else None


def _sample(run: str, one: Numbered, blobs: BlobStore | None) -> dict[str, Any] | None:
    """The row of a turn; None for everything else, and for what cannot be read."""
    delivery = one.delivery
    if not any(name == "ce_type" and _TURN.fullmatch(value) for name, value in delivery.headers):
        return None
    try:
        turn = decode(delivery.value, delivery.headers, blobs).data
    except MalformedEvent:
        return None
    assert isinstance(turn, TurnRecorded)
    drop = untrainable(turn)
    if drop is not None and drop.reason in OFF_POLICY:
        drop = None
    return {
        "sample_id": sample_id(run, turn.turn_id),
        "run": run,
        "turn_id": turn.turn_id,
        "session_id": turn.session_id,
        "state": "dropped" if drop else "pending",
        "drop_reason": drop.reason if drop else None,
        "drop_detail": drop.detail if drop else None,
        "linked": drop is not None and drop.reason in NEVER_JUDGED,
        "replay_order": one.order,
    }


def _recorded(connection: Connection, turn_ids: Sequence[str]) -> set[str]:
    """Of `turn_ids` those that are facts: an event that Postgres refused is none."""
    found = connection.exec_driver_sql(
        "SELECT turn_id FROM turns WHERE turn_id = ANY(%(ids)s)", {"ids": list(turn_ids)}
    )
    return set(found.scalars())
