"""A range of the log in one order: its partitions merged by the time that the log gave each record.

No consumer group: how far a replay is stands in Postgres, in the transaction of the samples that it opened, so no
offset of anybody's is moved. The order depends on nothing but what is on the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime
from threading import Event
from types import TracebackType
from typing import Any

import aiokafka.errors
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from processors.dead_letters import Delivery
from processors.replay.reader import PartitionReader

Offsets = dict[int, int]
"""Offset by partition."""

_BOOTSTRAP_MS = 10_000


class LogAway(RuntimeError):
    """The broker does not answer, or has no such topic."""


class LogGone(ValueError):
    """Part of the range is no longer on the log: which offsets, and what to do."""


class LogRange:
    """Reads `topic` from `starts` up to, not including, `ends`.

    Args:
        bootstrap_servers: `host:port`, comma-separated.
        topic: its name.

    Raises:
        LogAway: no broker answers, or it has no such topic.
    """

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._bootstrap_servers, self._topic = bootstrap_servers, topic
        self._reader: PartitionReader | None = None
        try:
            self._consumer: Any = KafkaConsumer(
                bootstrap_servers=bootstrap_servers.split(","),
                client_id="hindstream-replay",
                group_id=None,
                allow_auto_create_topics=False,
                bootstrap_timeout_ms=_BOOTSTRAP_MS,
            )
            numbers = self._consumer.partitions_for_topic(topic)
        except KafkaError as err:
            raise LogAway(f"no answer from the broker at {bootstrap_servers} ({type(err).__name__}: {err})") from err
        if not numbers:
            self._consumer.close()
            raise LogAway(f"the broker at {bootstrap_servers} has no topic {topic!r}")
        self._partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
        self._consumer.assign(self._partitions)

    def bounds(self, since: datetime | None, until: datetime | None) -> tuple[Offsets, Offsets]:
        """First offset, and offset after the last, of each partition: the records that the log got from `since` on and
        before `until`, as far as there are any now."""
        first = self._consumer.beginning_offsets(self._partitions)
        last = self._consumer.end_offsets(self._partitions)
        starts = {part.partition: first[part] for part in self._partitions}
        ends = {part.partition: last[part] for part in self._partitions}
        if since is not None:
            starts |= self._at(since, ends)
        if until is not None:
            ends |= self._at(until, ends)
        return {p: min(starts[p], ends[p]) for p in starts}, ends

    def read(self, starts: Mapping[int, int], ends: Mapping[int, int], stop: Event) -> Iterator[tuple[Delivery, int]]:
        """Each record of the range with its time, milliseconds since 1970, in order of (time, partition, offset); a
        partition's own order is kept. Ends early when `stop` is set.

        Raises:
            LogGone: retention has deleted a part of the range.
        """
        waiting = {part.partition: deque[Any]() for part in self._partitions}
        position = {part.partition: starts.get(part.partition, 0) for part in self._partitions}
        open_ = {p for p in position if position[p] < ends.get(p, 0)}
        self._refuse_gone(position, open_)
        if open_:
            try:
                self._reader = PartitionReader(self._bootstrap_servers, self._topic, {p: position[p] for p in open_})
            except aiokafka.errors.KafkaError as err:
                raise LogAway(f"no answer from the broker at {self._bootstrap_servers} ({err!r})") from err
        while not stop.is_set():
            ready = [p for p in waiting if waiting[p]]
            if not open_ and not ready:
                return
            if open_.issubset(ready):
                p = min(ready, key=lambda p: (waiting[p][0].timestamp, p))
                yield _delivery(waiting[p][0]), waiting[p][0].timestamp
                waiting[p].popleft()
                continue
            for p in sorted(open_.difference(ready)):
                self._fill(p, waiting[p], open_, ends[p])

    def close(self) -> None:
        """Close the connections."""
        if self._reader is not None:
            self._reader.close()
        self._consumer.close()

    def __enter__(self) -> LogRange:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _fill(self, partition: int, waiting: deque[Any], open_: set[int], end: int) -> None:
        assert self._reader is not None
        try:
            records, position = self._reader.take(partition)
        except aiokafka.errors.OffsetOutOfRangeError as err:
            raise LogGone(
                f"{self._topic} no longer holds a part of the range that was to be read next ({err}): retention has "
                "deleted it. Replay a later range, or from an export of the facts"
            ) from err
        waiting.extend(record for record in records if record.offset < end)
        if position >= end:
            open_.discard(partition)

    def _at(self, moment: datetime, ends: Offsets) -> Offsets:
        wanted = {part: int(moment.timestamp() * 1000) for part in self._partitions}
        found = self._consumer.offsets_for_times(wanted)
        return {part.partition: at.offset if at else ends[part.partition] for part, at in found.items()}

    def _refuse_gone(self, position: Offsets, open_: set[int]) -> None:
        first = self._consumer.beginning_offsets(self._partitions)
        gone = {p: (position[p], first[TopicPartition(self._topic, p)] - 1) for p in open_}
        lost = [f"partition {p}, offsets {low} to {high}" for p, (low, high) in sorted(gone.items()) if low <= high]
        if lost:
            raise LogGone(
                f"{self._topic} no longer holds a part of the range ({'; '.join(lost)}): retention has deleted it. "
                "Replay a later range, or from an export of the facts"
            )


def _delivery(record: Any) -> Delivery:
    return Delivery(record.topic, record.partition, record.offset, record.key, list(record.headers or ()), record.value)
