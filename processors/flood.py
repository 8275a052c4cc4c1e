"""A flood of unreadable records stops the worker, rather than drain the topic into dead letters.

Two signs, each counted by partition: many unreadable ones in a row, as after a bad deploy; and too large a share of the
latest records, as when one of many producers went bad. Both counts are read from `dead_letters` at the start, so a
restart does not forget them. Letters that somebody has settled (replayed, dropped) count no longer, nor do replays that
failed again: those came from a person or a policy that knew of the fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from processors.dead_letters import CONFLICT, Delivery, is_replay

Place = tuple[str, int]


class TooManyDeadLetters(RuntimeError):
    """So many records of one partition were unreadable that going on would drain the topic."""


@dataclass(frozen=True)
class Count:
    """Of one partition. `in_a_row`: unreadable ones up to the latest record; `offsets`: of the unreadable ones among
    the latest records, ascending; `next_offset`: of the record that comes next, if nothing is skipped."""

    in_a_row: int
    offsets: tuple[int, ...]
    next_offset: int


@dataclass
class FloodGate:
    """Counts unreadable records. `limit` in a row raise, and so do more than `share` of `window` records: of the latest
    so many, or of as many places where there are fewer yet, so that a few at the beginning of a log do not."""

    limit: int
    window: int = 1000
    share: float = 1.0
    counts: dict[Place, Count] = field(default_factory=dict)

    def seed(self, connection: Connection, deliveries: Sequence[Delivery]) -> None:
        """Find the counts of partitions that are new here, or that others recorded meanwhile."""
        seen: set[Place] = set()
        for delivery in deliveries:
            place = (delivery.topic, delivery.partition)
            if place in seen:
                continue
            seen.add(place)
            known = self.counts.get(place)
            if known is None or known.next_offset != delivery.offset:
                self.counts[place] = self._count_before(connection, delivery)

    def check(self, deliveries: Sequence[Delivery], unreadable: set[int]) -> dict[Place, Count]:
        """The counts after `deliveries`, of which those at the indices `unreadable` could not be read.

        Nothing changes here until they are recorded: the caller then sets `counts`.

        Raises:
            TooManyDeadLetters: a limit is reached.
        """
        counts = dict(self.counts)
        for index, delivery in enumerate(deliveries):
            place = (delivery.topic, delivery.partition)
            before = counts.get(place, Count(0, (), 0))
            if index in unreadable and not is_replay(delivery):
                oldest = delivery.offset - self.window
                offsets = (*(offset for offset in before.offsets if oldest < offset < delivery.offset), delivery.offset)
                counts[place] = Count(before.in_a_row + 1, offsets, delivery.offset + 1)
                self._refuse(counts[place], delivery)
            else:
                counts[place] = Count(0, before.offsets, delivery.offset + 1)
        return counts

    def _refuse(self, count: Count, delivery: Delivery) -> None:
        where = f"of {delivery.topic}/{delivery.partition} up to offset {delivery.offset} could not be read"
        if count.in_a_row >= self.limit:
            what = f"{count.in_a_row} records in a row {where}"
        elif len(count.offsets) > self.share * self.window:
            what = f"{len(count.offsets)} of the last {self.window} records {where}, over {self.share:.0%}"
        else:
            return
        raise TooManyDeadLetters(
            f"{what}; look at the table dead_letters (`hindstream dead-letters list`), mend the producer or this "
            "reader, then replay or drop the letters, or raise the limit to let them pass"
        )

    def _count_before(self, connection: Connection, delivery: Delivery) -> Count:
        reach = max(self.limit, self.window - 1)
        found = unreadable_before(connection, delivery, reach)
        in_a_row = 0
        for offset in reversed(found):
            if offset != delivery.offset - in_a_row - 1 or in_a_row == self.limit:
                break
            in_a_row += 1
        offsets = tuple(offset for offset in found if offset > delivery.offset - self.window)
        return Count(in_a_row, offsets, delivery.offset)


def unreadable_before(connection: Connection, delivery: Delivery, reach: int) -> list[int]:
    """Offsets, ascending, of the dead letters that count among the `reach` records before `delivery`."""
    found = connection.exec_driver_sql(
        """
        SELECT record_offset FROM dead_letters
        WHERE topic = %(topic)s AND partition = %(partition)s AND error_class <> %(conflict)s
          AND state = 'open' AND replay_of IS NULL
          AND record_offset < %(offset)s AND record_offset >= %(offset)s - %(reach)s::bigint
        ORDER BY record_offset
        """,
        {
            "topic": delivery.topic,
            "partition": delivery.partition,
            "offset": delivery.offset,
            "reach": reach,
            "conflict": CONFLICT,
        },
    )
    return list(found.scalars())
