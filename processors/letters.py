"""What becomes of dead letters: replayed to their topic, or dropped with a reason. Nothing is deleted unless asked.

A replay is the record byte for byte, with one header more that names the letter. It is published before the letter is
marked: after a crash between the two it is published again, which makes no second row, since events are recorded by
their ids. A replay that fails again is a letter of its own, linked to the one before.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from sqlalchemy import Connection

from processors.dead_letters import CONFLICT, REPLAY_HEADER
from schemas.envelope import WireRecord
from schemas.publish import Position
from schemas.states import DEAD_LETTER_TRANSITIONS, may_follow

Action = Literal["retry", "ask", "never"]
"""Of an error class. `retry`: replayed by itself after a while; `ask`: somebody must look first; `never`: a replay
would fail in the same way."""

DEFAULT_ACTIONS: Mapping[str, Action] = {"UnknownEventType": "retry", "ClaimCheckMissing": "retry", CONFLICT: "never"}
"""A newer worker may know the type, and a blob may still be on its way; an id stays taken. All others: `ask`."""

WORKER = "policy"
"""Who changed a letter's state where the worker did it by itself."""


@dataclass(frozen=True, kw_only=True)
class LetterPolicy:
    """`actions` by error class, over `DEFAULT_ACTIONS`. A record is replayed at most `max_replays` times. By itself for
    the first time `retry_after_s` after it came, then each time after four times as long. Settled letters are deleted
    after `keep_days`; 0: never."""

    actions: Mapping[str, Action] = field(default_factory=dict)
    max_replays: int = 3
    retry_after_s: float = 600.0
    keep_days: int = 0

    def action(self, error_class: str) -> Action:
        """What is done with letters of this class."""
        return self.actions.get(error_class, DEFAULT_ACTIONS.get(error_class, "ask"))

    @property
    def retried(self) -> list[str]:
        """Classes that are replayed by themselves."""
        return sorted(name for name in {*DEFAULT_ACTIONS, *self.actions} if self.action(name) == "retry")


class Publisher(Protocol):
    """`schemas.publish.AckedPublisher`, as far as replays need it."""

    def publish(self, topic: str, records: Sequence[WireRecord]) -> list[Position]:
        """Publish in order, return when all are acknowledged.

        Raises:
            PublishFailed: at least one was not.
        """
        ...


@dataclass(frozen=True)
class Settled:
    """What came of one letter. `done` False: it was left as it is, and `words` say why."""

    dead_letter_id: int
    done: bool
    words: str


_LOCKED = """
SELECT dead_letter_id, topic, partition, record_offset, key, headers, value, error_class, error_message, state,
       state_changed_at, state_changed_by, reason, replays, replayed_partition, replayed_offset
FROM dead_letters WHERE dead_letter_id = ANY(%(ids)s)
ORDER BY topic, partition, record_offset
FOR UPDATE
"""
"""In the order of the log, so that what was in order is in order again; two who replay at once wait for each other, and
the second finds it done."""

_REPLAYED = """
UPDATE dead_letters d SET state = 'replayed', state_changed_at = now(), state_changed_by = %(by)s,
       replayed_partition = placed.partition, replayed_offset = placed.record_offset
FROM unnest(%(ids)s::bigint[], %(partitions)s::int[], %(offsets)s::bigint[])
     AS placed(dead_letter_id, partition, record_offset)
WHERE d.dead_letter_id = placed.dead_letter_id
"""

_DUE = """
SELECT dead_letter_id FROM dead_letters
WHERE state = 'open' AND error_class = ANY(%(classes)s) AND replays < %(max_replays)s AND topic = %(topic)s
  AND created_at < now() - make_interval(secs => %(retry_after_s)s * power(4, replays))
ORDER BY partition, record_offset
LIMIT %(n)s
FOR UPDATE SKIP LOCKED
"""


def replay(
    connection: Connection, publisher: Publisher, ids: Sequence[int], *, by: str, policy: LetterPolicy
) -> list[Settled]:
    """Publish the letters again, in the order of the log, and mark them, in the caller's transaction, which had better
    commit: else they count as not replayed.

    Raises:
        PublishFailed: the broker did not acknowledge; none is marked, and some may have been published.
    """
    found = connection.exec_driver_sql(_LOCKED, {"ids": list(ids)}).all()
    settled = [_missing(number) for number in ids if number not in {row.dead_letter_id for row in found}]
    wanted = []
    for row in found:
        if (why := _not_replayed(row, policy)) is None:
            wanted.append(row)
        else:
            settled.append(Settled(row.dead_letter_id, False, why))
    places: list[Position] = []
    for topic in dict.fromkeys(row.topic for row in wanted):
        places += publisher.publish(topic, [record_of(row) for row in wanted if row.topic == topic])
    connection.exec_driver_sql(
        _REPLAYED,
        {
            "by": by,
            "ids": [row.dead_letter_id for row in wanted],
            "partitions": [place.partition for place in places],
            "offsets": [place.offset for place in places],
        },
    )
    for row, place in zip(wanted, places, strict=True):
        words = f"replayed to {place.topic}/{place.partition} at offset {place.offset}"
        settled.append(Settled(row.dead_letter_id, True, words))
    return settled


def drop(connection: Connection, ids: Sequence[int], *, by: str, reason: str, purge: bool = False) -> list[Settled]:
    """Mark the letters as not needed, for `reason`; with `purge` delete them, whatever their state."""
    found = connection.exec_driver_sql(_LOCKED, {"ids": list(ids)}).all()
    settled = [_missing(number) for number in ids if number not in {row.dead_letter_id for row in found}]
    for row in found:
        number = row.dead_letter_id
        if purge:
            connection.exec_driver_sql("DELETE FROM dead_letters WHERE dead_letter_id = %(id)s", {"id": number})
            settled.append(Settled(number, True, "deleted"))
        elif not may_follow(DEAD_LETTER_TRANSITIONS, row.state, "dropped"):
            settled.append(Settled(number, False, _as_it_is(row)))
        else:
            connection.exec_driver_sql(
                "UPDATE dead_letters SET state = 'dropped', state_changed_at = now(), state_changed_by = %(by)s, "
                "reason = %(reason)s WHERE dead_letter_id = %(id)s",
                {"by": by, "reason": reason, "id": number},
            )
            settled.append(Settled(number, True, "dropped"))
    return settled


def due(connection: Connection, policy: LetterPolicy, topic: str, n: int = 100) -> list[int]:
    """Up to `n` open letters of `topic` that the policy retries and whose time has come, now locked."""
    found = connection.exec_driver_sql(
        _DUE,
        {
            "classes": policy.retried,
            "max_replays": policy.max_replays,
            "retry_after_s": policy.retry_after_s,
            "topic": topic,
            "n": n,
        },
    )
    return list(found.scalars())


def purge_settled(connection: Connection, policy: LetterPolicy) -> int:
    """Delete letters that have been settled for longer than the policy keeps them. Returns how many."""
    if not policy.keep_days:
        return 0
    gone = connection.exec_driver_sql(
        "DELETE FROM dead_letters WHERE state <> 'open' AND state_changed_at < now() - make_interval(days => %(days)s)",
        {"days": policy.keep_days},
    )
    return gone.rowcount


def record_of(row: Any) -> WireRecord:
    """The record of a letter's row, as it came and marked."""
    headers = [(name, base64.b64decode(value)) for name, value in row.headers]
    headers.append((REPLAY_HEADER, str(row.dead_letter_id).encode("ascii")))
    return WireRecord(key=row.key, value=row.value, headers=headers)


def _not_replayed(row: Any, policy: LetterPolicy) -> str | None:
    """Why a letter is not replayed; None where it is."""
    if not may_follow(DEAD_LETTER_TRANSITIONS, row.state, "replayed"):
        return _as_it_is(row)
    if policy.action(row.error_class) == "never":
        words = f"a replay would fail again with {row.error_class}: {row.error_message}"
        if row.error_class == CONFLICT:
            words += ". Drop it, or have its source send the content under an id of its own"
        return words
    if row.value is None:
        return "the record has no value, so there is nothing to replay"
    if row.replays >= policy.max_replays:
        return (
            f"the record was replayed {row.replays} times already and failed each time: {row.error_message}. Drop it, "
            "or raise HINDSTREAM_DEAD_LETTERS__MAX_REPLAYS"
        )
    return None


def _as_it_is(row: Any) -> str:
    when = f"at {row.state_changed_at:%Y-%m-%d %H:%M:%S} by {row.state_changed_by or 'somebody'}"
    if row.state == "replayed":
        return f"it was replayed {when}, to {row.topic}/{row.replayed_partition} at offset {row.replayed_offset}"
    return f"it was dropped {when}: {row.reason}"


def _missing(number: int) -> Settled:
    return Settled(number, False, "there is no such dead letter")
