"""What Kafka still has of erased sessions, and until when: it deletes no single record."""

from __future__ import annotations

from datetime import datetime, timedelta

from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

_ANSWER_MS = 10_000


def retention_of(bootstrap_servers: str, topics: list[str]) -> dict[str, int]:
    """Milliseconds that each of the topics keeps a record; -1: for ever.

    Raises:
        KafkaError: the broker does not answer.
    """
    admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers.split(","), bootstrap_timeout_ms=_ANSWER_MS)
    try:
        wanted = [ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": None}) for topic in topics]
        found = admin.describe_configs(wanted, config_filter="all")["topic"]
        return {topic: int(settings["retention.ms"]["value"]) for topic, settings in found.items()}
    finally:
        admin.close()


def until(newest: datetime, retention_ms: int) -> str:
    """Until when a record that came at `newest` is kept, in words."""
    if retention_ms < 0:
        return "for ever: the topic has no retention (HINDSTREAM_KAFKA__RETENTION_HOURS)"
    gone = newest + timedelta(milliseconds=retention_ms)
    return f"until {gone:%Y-%m-%d %H:%M} UTC at the earliest, when its segment is deleted"
