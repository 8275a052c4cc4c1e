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

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from processors.dead_letters import Delivery

Offsets = dict[int, int]
"""Offset by partition."""

_POLL_MS = 500
_BOOTSTRAP_MS = 10_000
_BUFFERED = 2_000
"""Records taken from one partition at once. The next ones are asked for when these are used up, so that memory does not
grow with the distance between two partitions."""
_FETCH_BYTES = 1024 * 1024
"""A consumer holds twice that of its partition; a record is no larger."""


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
        self._readers: dict[int, Any] = {}
        try:
            self._consumer = self._connect()
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
        for p in sorted(open_):
            self._readers[p] = self._reader(p, position[p])
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
        for consumer in (*self._readers.values(), self._consumer):
            consumer.close()

    def __enter__(self) -> LogRange:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connect(self) -> Any:
        return KafkaConsumer(
            bootstrap_servers=self._bootstrap_servers.split(","),
            client_id="hindstream-replay",
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            allow_auto_create_topics=False,
            bootstrap_timeout_ms=_BOOTSTRAP_MS,
            max_poll_records=_BUFFERED,
            max_partition_fetch_bytes=_FETCH_BYTES,
        )

    def _reader(self, partition: int, offset: int) -> Any:
        """A consumer of one partition alone. One for all would have to pause those that are ahead, and kafka-python
        3.0's then stops fetching the others too, for ever."""
        consumer, part = self._connect(), TopicPartition(self._topic, partition)
        consumer.assign([part])
        consumer.seek(part, offset)
        return consumer

    def _fill(self, partition: int, waiting: deque[Any], open_: set[int], end: int) -> None:
        consumer, part = self._readers[partition], TopicPartition(self._topic, partition)
        for records in consumer.poll(timeout_ms=_POLL_MS).values():
            waiting.extend(record for record in records if record.offset < end)
        # The client's position also passes what a compacted or transactional log leaves out.
        if consumer.position(part) >= end:
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
