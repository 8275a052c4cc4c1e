"""Dead letters: what could not be recorded is kept whole, announced, and counted so that a flood stops the worker.

A bad deploy (a producer that writes nonsense, a reader that lost a type) makes every record unreadable. Draining the
topic into dead letters would then look like progress; so a run of them on one partition stops the worker instead.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field

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


class TooManyDeadLetters(RuntimeError):
    """So many records of one partition in a row were unreadable that going on would drain the topic."""


@dataclass
class FloodGate:
    """Counts unreadable records in a row, one count a partition.

    `limit` unreadable ones in a row raise. A good record sets the count back. The count survives a restart: the
    first record of a partition is preceded by the dead letters that stand directly before it on the log.
    """

    limit: int
    runs: dict[tuple[str, int], int] = field(default_factory=dict)

    def seed(self, connection: Connection, deliveries: Sequence[Delivery]) -> None:
        """Find the counts of partitions that are new here."""
        for delivery in deliveries:
            place = (delivery.topic, delivery.partition)
            if place not in self.runs:
                self.runs[place] = run_before(connection, delivery, self.limit)

    def check(self, deliveries: Sequence[Delivery], unreadable: set[int]) -> dict[tuple[str, int], int]:
        """The counts after `deliveries`, of which those at the indices `unreadable` could not be read.

        Nothing changes here until they are recorded: the caller then sets `runs`.

        Raises:
            TooManyDeadLetters: the limit is reached.
        """
        runs = dict(self.runs)
        for index, delivery in enumerate(deliveries):
            place = (delivery.topic, delivery.partition)
            runs[place] = runs.get(place, 0) + 1 if index in unreadable else 0
            if runs[place] >= self.limit:
                raise TooManyDeadLetters(
                    f"{runs[place]} records in a row of {delivery.topic}/{delivery.partition} up to offset "
                    f"{delivery.offset} could not be read; look at the table dead_letters, mend the producer or this "
                    "reader, or raise the limit to let them pass"
                )
        return runs


def write(connection: Connection, letters: Sequence[DeadLetter]) -> int:
    """Keep `letters` and put their announcements into the outbox, in the caller's transaction; those that are kept
    already are left as they are. Returns how many were new."""
    rows = [
        {
            "topic": letter.delivery.topic,
            "partition": letter.delivery.partition,
            "record_offset": letter.delivery.offset,
            "key": letter.delivery.key,
            "headers": _headers(letter.delivery),
            "value": letter.delivery.value,
            "error_class": letter.error_class,
            "error_message": sanitise_text(letter.error_message),
        }
        for letter in letters
    ]
    new = insert_new(connection, tables.dead_letters, rows, returning=("topic", "partition", "record_offset"))
    insert_new(connection, tables.outbox, [_announcement(letter) for letter in letters])
    return len(new)


def run_before(connection: Connection, delivery: Delivery, limit: int) -> int:
    """How many unreadable records stand directly before `delivery`, at most `limit`."""
    found = connection.exec_driver_sql(
        """
        SELECT record_offset FROM dead_letters
        WHERE topic = %(topic)s AND partition = %(partition)s AND error_class <> %(conflict)s
          AND record_offset < %(offset)s AND record_offset >= %(offset)s - %(limit)s::bigint
        ORDER BY record_offset DESC
        """,
        {
            "topic": delivery.topic,
            "partition": delivery.partition,
            "offset": delivery.offset,
            "limit": limit,
            "conflict": CONFLICT,
        },
    )
    run = 0
    for (offset,) in found:
        if offset != delivery.offset - run - 1:
            break
        run += 1
    return run


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
