"""The five topics: names, partitions and retention."""

from __future__ import annotations

from dataclasses import dataclass, field

AGENT_EVENTS = "agent-events"
MICRO_BATCHES = "micro-batches"
WEIGHTS = "weights"
DEAD_LETTERS = "dead-letters"
SIGNALS = "signals"

MAX_EVENT_BYTES = 1 << 20
"""Largest value on a topic: 1 MiB. Larger data go by claim check."""

MAX_REQUEST_BYTES = MAX_EVENT_BYTES + 64 * 1024
"""What a producer may send at once: a value of the largest size with its headers and framing."""

_MAX_MESSAGE_BYTES = 2 * MAX_EVENT_BYTES
"""What a topic takes as one message. Kafka's default is 1 MiB for value, headers and framing together, so it would for
ever refuse a value of just under 1 MiB."""


@dataclass(frozen=True, kw_only=True)
class TopicSpec:
    """How a topic is created. `partitions` fixes how far its readers scale and cannot be lowered."""

    name: str
    partitions: int
    config: dict[str, str] = field(default_factory=dict)


def topic_specs(event_partitions: int = 8) -> list[TopicSpec]:
    """Every topic.

    `agent-events` is kept for ever: it is the log of facts that everything else is folded from. `micro-batches` has
    one partition, so that a policy's micro-batches have one total order. `weights` is compacted: the newest
    version of each policy always stays. `event_partitions` bounds how many workers can record at once.
    """
    limit = {"max.message.bytes": str(_MAX_MESSAGE_BYTES)}
    forever = {**limit, "retention.ms": "-1", "retention.bytes": "-1"}
    month_ms = str(30 * 24 * 3600 * 1000)
    return [
        TopicSpec(name=AGENT_EVENTS, partitions=event_partitions, config=forever),
        TopicSpec(name=MICRO_BATCHES, partitions=1, config=forever),
        TopicSpec(name=WEIGHTS, partitions=1, config={**limit, "cleanup.policy": "compact"}),
        TopicSpec(name=DEAD_LETTERS, partitions=1, config=forever),
        TopicSpec(name=SIGNALS, partitions=event_partitions, config={**limit, "retention.ms": month_ms}),
    ]
