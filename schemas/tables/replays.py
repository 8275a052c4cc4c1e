"""Replays: which part of which log a run is made of, and how far it was read."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Table, Text
from sqlalchemy.dialects.postgresql import JSONB

from schemas.states import STOP_AFTER
from schemas.tables.base import created_at, metadata, one_of, timestamp

replays = Table(
    "replays",
    metadata,
    Column("run", Text, ForeignKey("runs.run"), primary_key=True, comment="The run, of kind replay."),
    Column("log", Text, nullable=False, comment="The topic, or file: and the digest of the files."),
    Column("starts", JSONB, nullable=False, comment="First offset of each partition; of files, of their events."),
    Column("ends", JSONB, nullable=False, comment="Offset after the last one of each partition, fixed at the start."),
    Column("next", JSONB, nullable=False, comment="Next offset to read of each partition: where a resume goes on."),
    Column("selection", JSONB, nullable=False, comment="What is taken of that range: sessions, share, seed."),
    Column("stop_after", Text, nullable=False, comment="rewards, samples or weights."),
    Column("turns_seen", BigInteger, nullable=False, server_default="0", comment="Turns taken, counted as they came."),
    Column("read", Boolean, nullable=False, server_default="false", comment="The whole range was read."),
    timestamp("finished_at", "When it had done all that stop_after names; NULL while it has not."),
    created_at(),
    one_of("stop_after", STOP_AFTER),
    comment="The range of a log that a replay reads, and how far it is; committed with the samples that it opens.",
)
