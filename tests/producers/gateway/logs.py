"""Reading the log back."""

from __future__ import annotations

import time

from kafka import KafkaConsumer

from schemas.envelope import Event, decode
from schemas.topics import AGENT_EVENTS


def events_of(broker: str, session_id: str, count: int, within_s: float = 30.0) -> list[Event]:
    """The session's events in the order of the log, once there are `count`."""
    consumer = KafkaConsumer(
        AGENT_EVENTS, bootstrap_servers=broker, auto_offset_reset="earliest", group_id=None, enable_auto_commit=False
    )
    found: list[Event] = []
    deadline = time.monotonic() + within_s
    try:
        while len(found) < count and time.monotonic() < deadline:
            for records in consumer.poll(timeout_ms=200).values():
                for record in records:
                    if record.key == session_id.encode():
                        found.append(decode(record.value, record.headers))
    finally:
        consumer.close()
    assert len(found) >= count, f"{len(found)} of {count} events of {session_id} on the log"
    return found
