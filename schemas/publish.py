"""Putting records on the log so that "published" means: the broker acknowledged.

`kafka-python`'s `send` may block on metadata and `flush` hides errors, so every future is checked here, and callers
on an event loop must call from a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError

from schemas.envelope import WireRecord
from schemas.topics import MAX_REQUEST_BYTES

log = logging.getLogger(__name__)

_RECONNECT_MS = 2000
"""The longest wait between two tries to connect. Kafka's default of 30 s keeps a broker away for that long after it is
back; a try every two seconds costs it nothing."""


class PublishFailed(RuntimeError):
    """The broker did not acknowledge a record in time; it may or may not be on the log, so send it again."""


@dataclass(frozen=True)
class Position:
    """Where a record stands on the log."""

    topic: str
    partition: int
    offset: int


class AckedPublisher:
    """Publishes records and returns only after all in-sync replicas have acknowledged. Thread-safe.

    Args:
        bootstrap_servers: `host:port`, comma-separated.
        client_id: shown in the broker's logs and metrics.
        timeout_s: the longest a `publish` may take, metadata included; then `PublishFailed`.
    """

    def __init__(self, bootstrap_servers: str, *, client_id: str, timeout_s: float = 30.0) -> None:
        self.timeout_s = timeout_s
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap_servers.split(","),
            client_id=client_id,
            acks="all",
            # kafka-python 3.0's idempotent producer never sends again once a batch that was sent has run out of time,
            # however long the broker is back. Our ids make a record that is sent twice one; one request at a time
            # keeps the order.
            enable_idempotence=False,
            max_in_flight_requests_per_connection=1,
            linger_ms=2,
            reconnect_backoff_max_ms=_RECONNECT_MS,
            max_request_size=MAX_REQUEST_BYTES,
            bootstrap_timeout_ms=int(timeout_s * 1000),
            max_block_ms=int(timeout_s * 1000),
            delivery_timeout_ms=int(timeout_s * 1000),
            request_timeout_ms=int(timeout_s * 500),
        )

    def publish(self, topic: str, records: Sequence[WireRecord]) -> list[Position]:
        """Publish `records` in order and wait for every acknowledgement.

        Raises:
            PublishFailed: at least one was not acknowledged in time.
        """
        try:
            futures = [self._producer.send(topic, value=r.value, key=r.key, headers=list(r.headers)) for r in records]
            metadata = [future.get(timeout=self.timeout_s) for future in futures]
        except KafkaError as err:
            raise PublishFailed(f"{topic}: the broker did not acknowledge ({type(err).__name__}: {err})") from err
        return [Position(m.topic, m.partition, m.offset) for m in metadata]

    def close(self) -> None:
        """Close the connection. What is pending belongs to a `publish` that failed, and is given up."""
        try:
            self._producer.close(timeout=self.timeout_s)
        except KafkaTimeoutError:
            log.warning("the broker is away; the connection is closed without waiting for it")

    def __enter__(self) -> AckedPublisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
