"""Reading one of the pipeline's own topics from wherever the reader wants, without a consumer group.

What was done with a message is known to Postgres alone, so no offset is ever committed to Kafka: a group's offset
could only disagree. The partition is assigned by hand, so there are no rebalances and no limit to how long the
handling of one message may take.
"""

from __future__ import annotations

import logging
from datetime import datetime
from threading import Event
from types import TracebackType
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from learner.database import Stopped

log = logging.getLogger(__name__)

_ANSWER_MS = 10_000
"""A broker that is there answers in milliseconds; one that has just been started, in a few seconds."""
_RETRY_S = 1.0


class TopicReader:
    """Reads a topic of one partition.

    Args:
        bootstrap_servers: `host:port`, comma-separated.
        topic: its name.
        client_id: shown in the broker's logs and metrics.
        stop: set it to end any waiting.

    Raises:
        Stopped: `stop` was set before a broker with this topic answered.
    """

    def __init__(self, bootstrap_servers: str, topic: str, *, client_id: str, stop: Event) -> None:
        self._partition = TopicPartition(topic, 0)
        self._stop = stop
        self._consumer = self._connect(bootstrap_servers.split(","), client_id)

    def seek_to(self, moment: datetime | None) -> None:
        """Go to the first message written at `moment` or later; None: to the first that there is."""
        if moment is None:
            self._consumer.seek_to_beginning(self._partition)
            return
        found = self._consumer.offsets_for_times({self._partition: int(moment.timestamp() * 1000)})[self._partition]
        if found is None:
            self._consumer.seek_to_end(self._partition)
        else:
            self._consumer.seek(self._partition, found.offset)

    def poll(self, seconds: float) -> list[tuple[str | None, bytes]]:
        """The next messages as (ce_type, value), in order; none after `seconds` without one. A broker that is away is
        waited for by the client."""
        records = self._consumer.poll(timeout_ms=int(seconds * 1000)).get(self._partition, [])
        return [(_type_of(record), record.value or b"") for record in records]

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def __enter__(self) -> TopicReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connect(self, servers: list[str], client_id: str) -> Any:
        said = ""
        while True:
            try:
                consumer = KafkaConsumer(
                    bootstrap_servers=servers,
                    client_id=client_id,
                    group_id=None,
                    enable_auto_commit=False,
                    auto_offset_reset="earliest",
                    # Made by accident it would have the broker's defaults: `weights` would not be compacted.
                    allow_auto_create_topics=False,
                    bootstrap_timeout_ms=_ANSWER_MS,
                )
                if consumer.partitions_for_topic(self._partition.topic):
                    consumer.assign([self._partition])
                    return consumer
                consumer.close()
                fault = f"there is no topic {self._partition.topic} (`hindstream topics create` makes it)"
            except KafkaError as err:
                fault = f"{type(err).__name__}: {err}"
            if fault != said:
                log.warning("waiting for the broker at %s: %s", ",".join(servers), fault)
                said = fault
            if self._stop.wait(_RETRY_S):
                raise Stopped


def _type_of(record: Any) -> str | None:
    return next((data.decode("utf-8", "replace") for name, data in record.headers or () if name == "ce_type"), None)
