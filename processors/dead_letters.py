"""Dead letters: what could not be recorded is kept whole and announced, with its state until somebody settles it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection

from processors.inserting import insert_new
from schemas import tables
from schemas.digests import content_id
from schemas.envelope import Headers
from schemas.messages import DEAD_LETTER_RECORDED, DeadLetterRecorded
from schemas.text import sanitise_text
from schemas.topics import DEAD_LETTERS, MAX_EVENT_BYTES

CONFLICT = "IdConflict"
"""The error class of a readable record whose id is taken by other content: kept, but no sign of a flood."""

REPLAY_HEADER = "hindstream-dead-letter"
"""Kafka header of a record that was published again: the number of the dead letter that it was."""

_DIGITS = 18
"""More do not fit into a bigint."""


@dataclass(frozen=True)
class Delivery:
    """One record as the broker delivered it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    headers: Headers
    value: bytes | None


@dataclass(frozen=True)
class DeadLetter:
    """A delivery that is not recorded, and why."""

    delivery: Delivery
    error_class: str
    error_message: str


def write(connection: Connection, letters: Sequence[DeadLetter]) -> int:
    """Keep `letters` and put their announcements into the outbox, in the caller's transaction; those that are kept
    already are left as they are. Returns how many were new."""
    replayed = _replayed(connection, letters)
    rows: list[dict[str, Any]] = []
    for letter in letters:
        replay_of, replays = replayed.get(_replay_of(letter.delivery), (None, 0))
        rows.append(
            {
                "topic": letter.delivery.topic,
                "partition": letter.delivery.partition,
                "record_offset": letter.delivery.offset,
                "key": letter.delivery.key,
                "headers": _headers(letter.delivery),
                "value": letter.delivery.value,
                "error_class": letter.error_class,
                "error_message": sanitise_text(letter.error_message),
                "replay_of": replay_of,
                "replays": replays,
            }
        )
    new = insert_new(connection, tables.dead_letters, rows, returning=("topic", "partition", "record_offset"))
    insert_new(connection, tables.outbox, [_announcement(letter) for letter in letters])
    return len(new)


def is_replay(delivery: Delivery) -> bool:
    """Whether the record says that it was a dead letter."""
    return _replay_of(delivery) is not None


def _replay_of(delivery: Delivery) -> int | None:
    """The newest mark counts: a record that was replayed twice has two."""
    for name, value in reversed(delivery.headers):
        if name == REPLAY_HEADER and value.isdigit() and len(value) <= _DIGITS:
            return int(value)
    return None


def _replayed(connection: Connection, letters: Sequence[DeadLetter]) -> dict[int | None, tuple[int, int]]:
    """By the number that a record carries, the dead letter that it was, and how often it was replayed with this."""
    numbers = {number for letter in letters if (number := _replay_of(letter.delivery)) is not None}
    if not numbers:
        return {}
    found = connection.exec_driver_sql(
        "SELECT dead_letter_id, replays + 1 FROM dead_letters WHERE dead_letter_id = ANY(%(numbers)s)",
        {"numbers": sorted(numbers)},
    )
    return {number: (number, replays) for number, replays in found}


def _headers(delivery: Delivery) -> list[list[str]]:
    return [[sanitise_text(name), base64.b64encode(value).decode("ascii")] for name, value in delivery.headers]


def _announcement(letter: DeadLetter) -> dict[str, object]:
    delivery = letter.delivery
    message = DeadLetterRecorded(
        topic=delivery.topic,
        partition=delivery.partition,
        offset=delivery.offset,
        error_class=letter.error_class,
        error_message=sanitise_text(letter.error_message),
        key=_base64(delivery.key),
        headers=_headers(delivery),
        value=_base64(delivery.value),
    )
    value = msgspec.json.encode(message)
    if len(value) > MAX_EVENT_BYTES:  # base64 made it larger than a topic takes; the table has it whole
        value = msgspec.json.encode(
            msgspec.structs.replace(message, error_message=message.error_message[:1000], headers=[], value=None)
        )
    return {
        "topic": DEAD_LETTERS,
        "message_id": content_id("dead", delivery.topic, delivery.partition, delivery.offset),
        "message_type": DEAD_LETTER_RECORDED,
        "key": f"{delivery.topic}/{delivery.partition}",
        "value": value,
    }


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")
