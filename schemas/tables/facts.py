"""Facts: what the event log says. Never changed by anything derived, and they carry no run."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import JSONB

from schemas.states import COMPLETED_BY
from schemas.tables.base import created_at, metadata, one_of, timestamp

events = Table(
    "events",
    metadata,
    Column("source", Text, nullable=False, comment="ce_source: who wrote the event."),
    Column("event_id", Text, nullable=False, comment="ce_id: unique within its source."),
    Column("type", Text, nullable=False, comment="Event type with its version."),
    Column("session_id", Text, nullable=False, comment="The event's key."),
    Column(
        "content_digest", Text, nullable=False, comment="SHA-256 of the data; tells a repeat from a conflict."
    ),
    Column("topic", Text, nullable=False, comment="Topic of the first delivery."),
    Column("partition", Integer, nullable=False, comment="Partition of the first delivery."),
    Column("record_offset", BigInteger, nullable=False, comment="Offset of the first delivery."),
    created_at(),
    PrimaryKeyConstraint("source", "event_id"),
    comment="Every event that was recorded, once: the dedupe key and where it stands on the log.",
)

sessions = Table(
    "sessions",
    metadata,
    Column("session_id", Text, primary_key=True, comment="Session: the event key."),
    Column("close_reason", Text, comment="Why no more turns follow; NULL while open."),
    Column("expected_turns", Integer, comment="How many turns the closing event promised; NULL: not said."),
    Column("expected_next_states", Integer, comment="How many next states the closing event promised."),
    timestamp("closed_at", "When the closing event was recorded; NULL while open."),
    created_at(),
    comment="One conversation, a tree of turns.",
)

turns = Table(
    "turns",
    metadata,
    Column("turn_id", Text, primary_key=True, comment="Deterministic id of the turn."),
    Column("session_id", Text, nullable=False, comment="Its session."),
    Column(
        "parent_turn_id", Text, comment="The turn that this one follows; NULL for a root. May arrive later."
    ),
    Column("ordinal", Integer, nullable=False, comment="Place in its branch, from 0."),
    Column("kind", Text, nullable=False, comment="main, or side (recorded, not trained)."),
    Column("messages", JSONB, nullable=False, comment="The request's messages as sent."),
    Column("tools", JSONB, nullable=False, comment="The request's tools as sent."),
    Column(
        "response", JSONB, nullable=False, comment="content, reasoning and tool_calls with raw arguments."
    ),
    Column("finish_reason", Text, nullable=False, comment="stop, length, tool_calls, aborted or error."),
    Column("policy", Text, nullable=False, comment="Name of the policy that answered."),
    Column(
        "version_spans", JSONB, nullable=False, comment="[{version, start, end}] over the response tokens."
    ),
    Column("oldest_version", Integer, comment="Lowest weight version in the spans; NULL where unknown."),
    Column("newest_version", Integer, comment="Highest weight version in the spans; NULL where unknown."),
    Column("sampling", JSONB, nullable=False, comment="Sampling parameters of the request."),
    Column("token_source", Text, nullable=False, comment="engine, retokenised or none."),
    Column("prompt_ids", LargeBinary, nullable=False, comment="int32 little-endian, 4 bytes a token."),
    Column("response_ids", LargeBinary, nullable=False, comment="int32 little-endian, 4 bytes a token."),
    Column("response_logprobs", LargeBinary, nullable=False, comment="float32 little-endian, as sampled."),
    Column("prompt_tokens", Integer, nullable=False, comment="Number of prompt ids."),
    Column("response_tokens", Integer, nullable=False, comment="Number of response ids."),
    Column("group_id", Text, comment="Candidates of one prompt share it."),
    Column(
        "next_state_ids",
        JSONB,
        nullable=False,
        comment="Next states of the parent that this request carried.",
    ),
    Column("started_at", Text, comment="Start by the source's clock, ISO 8601 as given."),
    Column("ended_at", Text, comment="End by the source's clock, ISO 8601 as given."),
    Column("latency_ms", Double, comment="End minus start; 0 with clock_skew where the end was earlier."),
    Column("clock_skew", Boolean, nullable=False, comment="The source's end was before its start."),
    Column("origin", JSONB, comment="format, file and line of an imported turn."),
    Column("unknown", JSONB, nullable=False, comment="Fields of a later event version, kept as they came."),
    Column("sanitised", Boolean, nullable=False, comment="Some text held NUL or lone surrogates."),
    Column("raw", LargeBinary, comment="The original JSON (ASCII escapes) where sanitised."),
    created_at(precise=True),
    Index("ix_turns_session_id", "session_id"),
    Index("ix_turns_parent_turn_id", "parent_turn_id"),
    one_of("kind", ("main", "side")),
    one_of("token_source", ("engine", "retokenised", "none")),
    one_of("finish_reason", ("stop", "length", "tool_calls", "aborted", "error")),
    comment="The policy answered once: text, exact tokens, log-probs, and who made them.",
)

next_states = Table(
    "next_states",
    metadata,
    Column("next_state_id", Text, primary_key=True, comment="Deterministic id of the next state."),
    Column("session_id", Text, nullable=False, comment="Its session."),
    Column("turn_id", Text, nullable=False, comment="The turn that it answers; may arrive later."),
    Column(
        "kind",
        Text,
        nullable=False,
        comment="user_reply, tool_result, terminal_output, gui_change, test_verdict.",
    ),
    Column("ordinal", Integer, nullable=False, comment="Order among the next states of its turn."),
    Column("role", Text, comment="Message role, where it was a message."),
    Column("content", Text, comment="Its text."),
    Column("tool_call_id", Text, comment="The tool call that it answers."),
    Column("verdict", Double, comment="Environment's judgement in [0, 1]; NULL: none."),
    Column("exit_code", Integer, comment="Exit code of a process; NULL: none."),
    Column("observed_at", Text, comment="By the source's clock, ISO 8601 as given."),
    Column("origin", JSONB, comment="format, file and line of an imported next state."),
    Column("unknown", JSONB, nullable=False, comment="Fields of a later event version, kept as they came."),
    Column("sanitised", Boolean, nullable=False, comment="Some text held NUL or lone surrogates."),
    Column("raw", LargeBinary, comment="The original JSON (ASCII escapes) where sanitised."),
    created_at(),
    Index("ix_next_states_turn_id", "turn_id"),
    Index("ix_next_states_session_id", "session_id"),
    one_of("kind", ("user_reply", "tool_result", "terminal_output", "gui_change", "test_verdict")),
    comment="What answered a turn.",
)

turn_completions = Table(
    "turn_completions",
    metadata,
    Column("turn_id", Text, primary_key=True, comment="The turn that is complete."),
    Column("completed_by", Text, nullable=False, comment="next_turn or session_closed."),
    Column("cause_id", Text, nullable=False, comment="The turn or session whose event completed it."),
    created_at(),
    one_of("completed_by", COMPLETED_BY),
    comment="A turn's next states are all known: the next turn of its branch is recorded, or its session is closed.",
)

feedback = Table(
    "feedback",
    metadata,
    Column("feedback_id", Text, primary_key=True, comment="Deterministic id of the feedback."),
    Column("session_id", Text, nullable=False, comment="Its session."),
    Column("turn_id", Text, nullable=False, comment="The turn that is judged; may arrive later."),
    Column("score", Double, comment="In [-1, 1]; NULL: none given."),
    Column("thumbs", Text, comment="up or down; NULL: none given."),
    Column("correction", Text, comment="What the answer should have been."),
    Column("author", Text, comment="Who gave it."),
    Column("given_at", Text, comment="By the source's clock, ISO 8601 as given."),
    Column("unknown", JSONB, nullable=False, comment="Fields of a later event version, kept as they came."),
    Column("sanitised", Boolean, nullable=False, comment="Some text held NUL or lone surrogates."),
    Column("raw", LargeBinary, comment="The original JSON (ASCII escapes) where sanitised."),
    created_at(),
    Index("ix_feedback_turn_id", "turn_id"),
    one_of("thumbs", ("up", "down")),
    comment="People's explicit judgements of turns.",
)
