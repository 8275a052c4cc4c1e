"""Delivery: what must reach a topic (outbox), and what could not be read from one (dead letters)."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from schemas.states import DEAD_LETTER_STATES
from schemas.tables.base import created_at, metadata, one_of, timestamp

outbox = Table(
    "outbox",
    metadata,
    Column("outbox_id", BigInteger, Identity(always=True), primary_key=True, comment="Order of sending a topic."),
    Column("topic", Text, nullable=False, comment="Where it goes."),
    Column("message_id", Text, nullable=False, comment="ce_id: readers drop repeats by it."),
    Column("message_type", Text, nullable=False, comment="ce_type."),
    Column("key", Text, nullable=False, comment="Kafka key."),
    Column("value", LargeBinary, nullable=False, comment="JSON."),
    timestamp("sent_at", "When the broker acknowledged it; NULL: not yet."),
    created_at(),
    Index("ix_outbox_unsent", "topic", "outbox_id", postgresql_where=text("sent_at IS NULL")),
    Index("uq_outbox_topic_message_id", "topic", "message_id", unique=True),
    comment="Messages committed with the rows that they announce; the relay sends them, at least once, in order.",
)

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("dead_letter_id", BigInteger, Identity(always=True), primary_key=True, comment="Serial."),
    Column("topic", Text, nullable=False, comment="Topic of the record."),
    Column("partition", Integer, nullable=False, comment="Partition of the record."),
    Column("record_offset", BigInteger, nullable=False, comment="Offset of the record."),
    Column("key", LargeBinary, comment="Key as it came."),
    Column("headers", JSONB, nullable=False, comment="[[name, base64]] as they came."),
    Column("value", LargeBinary, comment="Value as it came."),
    Column("error_class", Text, nullable=False, comment="Class of the fault."),
    Column("error_message", Text, nullable=False, comment="What was wrong."),
    Column("state", Text, nullable=False, server_default="open", comment="open, replayed or dropped."),
    timestamp("state_changed_at", "When it was replayed or dropped."),
    Column("state_changed_by", Text, comment="By whom: a person, or the worker's own policy."),
    Column("reason", Text, comment="Why it was dropped."),
    Column(
        "replay_of",
        BigInteger,
        ForeignKey("dead_letters.dead_letter_id", ondelete="SET NULL"),
        comment="The dead letter whose replay this record is; NULL: it is none.",
    ),
    Column("replays", Integer, nullable=False, server_default="0", comment="Replays before it that failed too."),
    Column("replayed_partition", Integer, comment="Partition of its replay."),
    Column("replayed_offset", BigInteger, comment="Offset of its replay."),
    created_at(),
    Index("uq_dead_letters_topic_partition_record_offset", "topic", "partition", "record_offset", unique=True),
    Index("ix_dead_letters_open", "error_class", "created_at", postgresql_where=text("state = 'open'")),
    Index("ix_dead_letters_replay_of", "replay_of", postgresql_where=text("replay_of IS NOT NULL")),
    one_of("state", DEAD_LETTER_STATES),
    CheckConstraint("(state = 'open') = (state_changed_at IS NULL)", name="settled_has_time"),
    CheckConstraint("(state = 'replayed') = (replayed_offset IS NOT NULL)", name="replayed_has_place"),
    CheckConstraint("state <> 'dropped' OR reason IS NOT NULL", name="dropped_has_reason"),
    comment="Records that could not be recorded, with everything needed to mend and replay them.",
)
