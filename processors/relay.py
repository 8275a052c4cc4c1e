"""The outbox relay: what was committed to be said is said on Kafka, in order, at least once.

A message may be sent twice (after a crash between the broker's acknowledgement and ours); readers drop repeats by
`ce_id`. What is unsent is found by `sent_at IS NULL`, never by position: a transaction that took its `outbox_id`
early and committed late would be skipped by a reader that remembers the highest id it has seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from kafka.errors import KafkaError
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from processors.health import Health
from processors.idle import SOURCE
from processors.patience import Pause
from processors.transactions import Transactions
from schemas.database import in_words, is_transient
from schemas.envelope import CONTENT_TYPE, SPEC_VERSION, WireRecord
from schemas.publish import AckedPublisher, PublishFailed
from schemas.topics import AGENT_EVENTS, DEAD_LETTERS, MICRO_BATCHES, SIGNALS, WEIGHTS

TOPICS = (AGENT_EVENTS, MICRO_BATCHES, WEIGHTS, SIGNALS, DEAD_LETTERS)

LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended('hindstream.relay/' || %(topic)s, 0))"
"""One relay a topic at a time, or two could interleave and turn the order round."""

UNSENT = """
SELECT outbox_id, message_id, message_type, key, value, created_at FROM outbox
WHERE topic = %(topic)s AND sent_at IS NULL
ORDER BY outbox_id
LIMIT %(n)s
"""


@dataclass(frozen=True, kw_only=True)
class RelayConfig:
    """Where the relay sends to and how often it looks."""

    bootstrap_servers: str
    timeout_s: float = 15.0
    """The longest wait for the broker's acknowledgement; the transaction that holds the topic's lock waits with it,
    and the database ends transactions that are idle for a minute."""
    batch: int = 256
    """Messages sent and marked at once."""
    poll_s: float = 0.05
    """Between two looks when there is nothing to send."""


class Publisher(Protocol):
    """`schemas.publish.AckedPublisher`, as far as the relay needs it."""

    def publish(self, topic: str, records: Sequence[WireRecord]) -> object:
        """Publish in order, return when all are acknowledged.

        Raises:
            PublishFailed: at least one was not.
        """
        ...


def record_of(row: Any) -> WireRecord:
    """The Kafka record of an outbox row: CloudEvents in binary mode."""
    time = row.created_at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    headers = [
        ("content-type", CONTENT_TYPE),
        ("ce_id", row.message_id.encode("utf-8")),
        ("ce_source", SOURCE.encode("ascii")),
        ("ce_type", row.message_type.encode("utf-8")),
        ("ce_specversion", SPEC_VERSION.encode("ascii")),
        ("ce_time", time.encode("ascii")),
    ]
    return WireRecord(key=row.key.encode("utf-8"), value=bytes(row.value), headers=headers)


def relay_once(connection: Connection, publisher: Publisher, topic: str, n: int) -> int:
    """Send up to `n` unsent messages of `topic` and mark them, in the caller's transaction. Returns how many.

    Blocks until the broker has acknowledged them all.

    Raises:
        PublishFailed: the broker did not; nothing is marked, and some may have been sent.
    """
    if not connection.exec_driver_sql(LOCK, {"topic": topic}).scalar_one():
        return 0
    rows = connection.exec_driver_sql(UNSENT, {"topic": topic, "n": n}).all()
    if not rows:
        return 0
    publisher.publish(topic, [record_of(row) for row in rows])
    connection.exec_driver_sql(
        "UPDATE outbox SET sent_at = %(now)s WHERE outbox_id = ANY(%(ids)s)",
        {"now": datetime.now(UTC), "ids": [row.outbox_id for row in rows]},
    )
    return len(rows)


async def run_relay(config: RelayConfig, engine: Engine, stop: asyncio.Event, health: Health) -> None:
    """Send what is in the outbox until `stop`; a database or broker that is away is waited for.

    Each topic goes its own way, so that one which the broker refuses does not hold up the others.

    Raises:
        SQLAlchemyError: the database refuses for a reason that does not pass.
    """
    transactions = Transactions(engine, threads=len(TOPICS), name="relay")
    topics = [asyncio.create_task(_relay(config, transactions, topic, stop, health)) for topic in TOPICS]
    try:
        await asyncio.wait(topics, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in topics:
            task.cancel()
        ended = await asyncio.gather(*topics, return_exceptions=True)
        await asyncio.to_thread(transactions.close)
    for fault in ended:
        if isinstance(fault, Exception):
            raise fault


async def _relay(
    config: RelayConfig, transactions: Transactions, topic: str, stop: asyncio.Event, health: Health
) -> None:
    pause = Pause(stop, health, f"relay {topic}")
    publisher: AckedPublisher | None = None
    try:
        while not stop.is_set():
            sent = 0
            try:
                if publisher is None:
                    publisher = await asyncio.to_thread(_connect, config, topic)
                sent = await transactions.run(relay_once, publisher, topic, config.batch)
                pause.succeeded()
            except (PublishFailed, KafkaError) as err:
                await pause.after_fault(str(err) or type(err).__name__)
            except SQLAlchemyError as err:
                if not is_transient(err):
                    raise
                await pause.after_fault(in_words(err))
            if not sent:
                await pause.wait(config.poll_s)
    finally:
        if publisher is not None:
            await asyncio.to_thread(publisher.close)


def _connect(config: RelayConfig, topic: str) -> AckedPublisher:
    return AckedPublisher(config.bootstrap_servers, client_id=f"hindstream-relay-{topic}", timeout_s=config.timeout_s)
