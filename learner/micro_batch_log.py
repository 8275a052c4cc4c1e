"""The topic `micro-batches` as the learner reads it: one partition, from the beginning, one run.

There is no consumer group: which micro-batches are consumed is in Postgres, in the transaction that made their weights.
An offset committed to the broker could only disagree with it.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from kafka import KafkaConsumer, TopicPartition

from schemas.messages import MICRO_BATCH_PUBLISHED, MicroBatchPublished
from schemas.topics import MICRO_BATCHES

_PARTITION = TopicPartition(MICRO_BATCHES, 0)


class MicroBatchLog:
    """The micro-batches of `run`, in the order of the topic, each once although the relay may send one twice."""

    def __init__(self, bootstrap_servers: str, run: str) -> None:
        self._run = run
        self._last = 0
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap_servers.split(","),
            client_id="hindstream-learner",
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        self._consumer.assign([_PARTITION])
        self._consumer.seek_to_beginning(_PARTITION)

    def poll(self, seconds: float) -> Iterator[MicroBatchPublished]:
        """What has come, waiting at most `seconds` for the first."""
        for records in self._consumer.poll(timeout_ms=int(seconds * 1000)).values():
            for record in records:
                headers = dict(record.headers or ())
                if headers.get("ce_type") != MICRO_BATCH_PUBLISHED.encode():
                    continue
                message = msgspec.json.decode(record.value, type=MicroBatchPublished)
                if message.run == self._run and message.seq > self._last:
                    self._last = message.seq
                    yield message

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()
