"""Records of chosen partitions, read by aiokafka: it parses them in C, where kafka-python takes longer to read a record
than a replay takes to do something with it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

_POLL_MS = 500
_BUFFERED = 2_000
"""Records taken from one partition at once. The next ones are asked for when these are used up, so that memory does not
grow with the distance between two partitions."""
_FETCH_BYTES = 1024 * 1024
"""Of each partition that much is fetched ahead; a record is no larger."""


class PartitionReader:
    """Reads the partitions of `topic` from `starts` on, each as far as it is asked. For one thread, without a running
    event loop: its own runs only while it is asked.

    Raises:
        KafkaError: no broker answers.
    """

    def __init__(self, bootstrap_servers: str, topic: str, starts: Mapping[int, int]) -> None:
        self._loop = asyncio.new_event_loop()
        self._parts = {p: TopicPartition(topic, p) for p in starts}
        self._consumer = self._loop.run_until_complete(self._start(bootstrap_servers, starts))

    def take(self, partition: int) -> tuple[list[Any], int]:
        """The next records of `partition`, none where none came in half a second, and the offset after them: it also
        passes what a compacted or transactional log leaves out."""
        return self._loop.run_until_complete(self._take(self._parts[partition]))

    def close(self) -> None:
        """Close the connections."""
        self._loop.run_until_complete(self._consumer.stop())
        self._loop.close()

    async def _start(self, bootstrap_servers: str, starts: Mapping[int, int]) -> Any:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap_servers,
            client_id="hindstream-replay",
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            max_partition_fetch_bytes=_FETCH_BYTES,
        )
        try:
            await consumer.start()
            consumer.assign(list(self._parts.values()))
            for partition, offset in starts.items():
                consumer.seek(self._parts[partition], offset)
        except BaseException:
            await consumer.stop()
            raise
        return consumer

    async def _take(self, part: TopicPartition) -> tuple[list[Any], int]:
        found = await self._consumer.getmany(part, timeout_ms=_POLL_MS, max_records=_BUFFERED)
        return [record for records in found.values() for record in records], await self._consumer.position(part)
