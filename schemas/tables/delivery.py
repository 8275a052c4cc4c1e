"""Delivery: what must reach a topic (outbox), and what could not be read from one (dead letters)."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Identity, Index, Integer, LargeBinary, Table, Text, text
from sqlalchemy.dialects.postgresql import JSONB

from schemas.tables.base import created_at, metadata, timestamp

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
    created_at(),
    Index("uq_dead_letters_topic_partition_record_offset", "topic", "partition", "record_offset", unique=True),
    comment="Records that could not be recorded, with everything needed to mend and replay them.",
)
