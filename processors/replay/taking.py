"""Taking turns into a replay: facts that the database lacks are recorded, and each taken turn gets a sample."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from sqlalchemy import Connection

from processors.dead_letters import Delivery
from processors.evaluators.recorded import Models
from processors.recording import record
from processors.replay import progress
from processors.replay.opening import Opened, Taken, open_samples, write_samples
from processors.replay.selection import Selection
from processors.sessions import lock_sessions
from processors.trainable import NEVER_JUDGED, untrainable
from schemas.claim_check import BlobStore
from schemas.envelope import MalformedEvent, decode
from schemas.events import TYPE_OF, TurnRecorded
from schemas.recipes import Recipe, needs_of

_TURN = re.compile(rb"hindstream\.turn\.recorded\.v\d+")
_NEWEST = TYPE_OF[TurnRecorded].encode()
_decoder = msgspec.json.Decoder(TurnRecorded)

OFF_POLICY = frozenset({"unknown_version"})
"""Reasons against live training that are none against a replay: it trains what an older policy said, and shows how far
off the samples are instead of comparing versions."""


@dataclass(frozen=True)
class Numbered:
    """A delivery and its place in the order in which the replay reads its log."""

    delivery: Delivery
    order: int


def prepare(
    connection: Connection,
    run: str,
    recipe: Recipe,
    batch: Sequence[Numbered],
    selection: Selection,
    *,
    log: str,
    blobs: BlobStore | None = None,
    models: Models | None = None,
) -> Opened:
    """What `selection` wants of `batch`, ready to be taken into the run by `take`.

    What the database knows already is not read a second time; what it lacks is recorded as any worker would, in the
    caller's transaction. With `models`, what rules and recorded answers tell is decided (`processors.replay.opening`).
    Nothing of the run is written, so one batch is prepared while another is taken.

    Raises:
        OSError: a claim check could not be fetched for a reason that may pass.
    """
    wanted = [one for one in batch if selection.takes(_session(one.delivery))]
    unknown = _unknown(connection, [one.delivery for one in wanted])
    if unknown:
        record(connection, unknown, blobs=blobs, log=log)
    text = needs_of(recipe).text
    taken = [row for one in wanted if (row := _sample(run, one, blobs, text=text)) is not None]
    return open_samples(connection, run, recipe, taken, models)


def take(connection: Connection, run: str, opened: Opened, next_: Mapping[int, int]) -> int:
    """Take a prepared batch into the run, in the caller's transaction, and remember that the offsets before `next_` are
    done. Returns how many turns were taken; taking the same again takes none. Batches are taken in their order."""
    # In one order, so that two replays of one log cannot wait for each other's rows.
    lock_sessions(connection, opened.sessions)
    new = write_samples(connection, run, opened)
    progress.advance(connection, run, next_, new)
    return new


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


def _sample(run: str, one: Numbered, blobs: BlobStore | None, *, text: bool) -> Taken | None:
    """What is taken of a turn; None for everything else, and for what cannot be read."""
    delivery = one.delivery
    if not any(name == "ce_type" and _TURN.fullmatch(value) for name, value in delivery.headers):
        return None
    turn = _turn(delivery, blobs)
    if turn is None:
        return None
    drop = untrainable(turn, text=text)
    if drop is not None and drop.reason in OFF_POLICY:
        drop = None
    return Taken(
        run=run,
        turn_id=turn.turn_id,
        session_id=turn.session_id,
        replay_order=one.order,
        state="dropped" if drop else "pending",
        drop_reason=drop.reason if drop else None,
        drop_detail=drop.detail if drop else None,
        linked=drop is not None and drop.reason in NEVER_JUDGED,
    )


def _turn(delivery: Delivery, blobs: BlobStore | None) -> TurnRecorded | None:
    """What the event says; None where it cannot be read. Most have nothing to translate, to fetch or to replace: they
    are read straight into the struct, four times as fast."""
    names = {name: value for name, value in delivery.headers if name in ("ce_type", "ce_dataref")}
    if names == {"ce_type": _NEWEST} and delivery.value is not None:
        try:
            turn = _decoder.decode(delivery.value)
            if "\x00" not in turn.turn_id + turn.session_id:
                return turn
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass  # a lone surrogate, for one: the other way can tell
    try:
        data = decode(delivery.value, delivery.headers, blobs).data
    except MalformedEvent:
        return None
    assert isinstance(data, TurnRecorded)
    return data
