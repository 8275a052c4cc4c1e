"""Every table of the contract: facts, work, results, learning and delivery.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """every table of the contract"""
    op.create_table(
        "dead_letters",
        sa.Column("dead_letter_id", sa.BigInteger(), sa.Identity(always=True), nullable=False, comment="Serial."),
        sa.Column("topic", sa.Text(), nullable=False, comment="Topic of the record."),
        sa.Column("partition", sa.Integer(), nullable=False, comment="Partition of the record."),
        sa.Column("record_offset", sa.BigInteger(), nullable=False, comment="Offset of the record."),
        sa.Column("key", sa.LargeBinary(), nullable=True, comment="Key as it came."),
        sa.Column(
            "headers", postgresql.JSONB(astext_type=sa.Text()), nullable=False, comment="[[name, base64]] as they came."
        ),
        sa.Column("value", sa.LargeBinary(), nullable=True, comment="Value as it came."),
        sa.Column("error_class", sa.Text(), nullable=False, comment="Class of the fault."),
        sa.Column("error_message", sa.Text(), nullable=False, comment="What was wrong."),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When this row was inserted (database clock).",
        ),
        sa.PrimaryKeyConstraint("dead_letter_id", name=op.f("pk_dead_letters")),
        comment="Records that could not be recorded, with everything needed to mend and replay them.",
    )
    op.create_index(
        "uq_dead_letters_topic_partition_record_offset",
        "dead_letters",
        ["topic", "partition", "record_offset"],
        unique=True,
    )
    op.create_table(
        "events",
        sa.Column("source", sa.Text(), nullable=False, comment="ce_source: who wrote the event."),
        sa.Column("event_id", sa.Text(), nullable=False, comment="ce_id: unique within its source."),
        sa.Column("type", sa.Text(), nullable=False, comment="Event type with its version."),
        sa.Column("session_id", sa.Text(), nullable=False, comment="The event's key."),
        sa.Column(
            "content_digest", sa.Text(), nullable=False, comment="SHA-256 of the data; tells a repeat from a conflict."
        ),
        sa.Column("topic", sa.Text(), nullable=False, comment="Topic of the first delivery."),
        sa.Column("partition", sa.Integer(), nullable=False, comment="Partition of the first delivery."),
        sa.Column("record_offset", sa.BigInteger(), nullable=False, comment="Offset of the first delivery."),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When this row was inserted (database clock).",
        ),
        sa.PrimaryKeyConstraint("source", "event_id", name=op.f("pk_events")),
        comment="Every event that was recorded, once: the dedupe key and where it stands on the log.",
    )
    op.create_table(
        "feedback",
        sa.Column("feedback_id", sa.Text(), nullable=False, comment="Deterministic id of the feedback."),
        sa.Column("session_id", sa.Text(), nullable=False, comment="Its session."),
        sa.Column("turn_id", sa.Text(), nullable=False, comment="The turn that is judged; may arrive later."),
        sa.Column("score", sa.Double(), nullable=True, comment="In [-1, 1]; NULL: none given."),
        sa.Column("thumbs", sa.Text(), nullable=True, comment="up or down; NULL: none given."),
        sa.Column("correction", sa.Text(), nullable=True, comment="What the answer should have been."),
        sa.Column("author", sa.Text(), nullable=True, comment="Who gave it."),
        sa.Column("given_at", sa.Text(), nullable=True, comment="By the source's clock, ISO 8601 as given."),
        sa.Column(
            "unknown",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="Fields of a later event version, kept as they came.",
        ),
        sa.Column("sanitised", sa.Boolean(), nullable=False, comment="Some text held NUL or lone surrogates."),
        sa.Column("raw", sa.LargeBinary(), nullable=True, comment="The original JSON (ASCII escapes) where sanitised."),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When this row was inserted (database clock).",
        ),
        sa.CheckConstraint("thumbs IN ('up', 'down')", name=op.f("ck_feedback_thumbs")),
        sa.PrimaryKeyConstraint("feedback_id", name=op.f("pk_feedback")),
        comment="People's explicit judgements of turns.",
    )
    op.create_index("ix_feedback_turn_id", "feedback", ["turn_id"], unique=False)
    op.create_table(
        "model_answers",
        sa.Column("answer_digest", sa.Text(), nullable=False, comment="SHA-256 of everything that shaped the answer."),
        sa.Column("purpose", sa.Text(), nullable=False, comment="reward, hint or teacher."),
        sa.Column("model", sa.Text(), nullable=False, comment="Model that answered."),
        sa.Column("answer", postgresql.JSONB(astext_type=sa.Text()), nullable=False, comment="The answer as it came."),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When this row was inserted (database clock).",
        ),
        sa.CheckConstraint("purpose IN ('reward', 'hint', 'teacher')", name=op.f("ck_model_answers_purpose")),
        sa.PrimaryKeyConstraint("answer_digest", name=op.f("pk_model_answers")),
        comment="Answers of model servers by the digest of the question: the same question is never paid for twice.",
    )
    op.create_table(
        "next_states",
        sa.Column("next_state_id", sa.Text(), nullable=False, comment="Deterministic id of the next state."),
        sa.Column("session_id", sa.Text(), nullable=False, comment="Its session."),
        sa.Column("turn_id", sa.Text(), nullable=False, comment="The turn that it answers; may arrive later."),
        sa.Column(
            "kind",
            sa.Text(),
            nullable=False,
            comment="user_reply, tool_result, terminal_output, gui_change, test_verdict.",
        ),
        sa.Column("ordinal", sa.Integer(), nullable=False, comment="Order among the next states of its turn."),
        sa.Column("role", sa.Text(), nullable=True, comment="Message role, where it was a message."),
        sa.Column("content", sa.Text(), nullable=True, comment="Its text."),
        sa.Column("tool_call_id", sa.Text(), nullable=True, comment="The tool call that it answers."),
        sa.Column("verdict", sa.Double(), nullable=True, comment="Environment's judgement in [0, 1]; NULL: none."),
        sa.Column("exit_code", sa.Integer(), nullable=True, comment="Exit code of a process; NULL: none."),
        sa.Column("observed_at", sa.Text(), nullable=True, comment="By the source's clock, ISO 8601 as given."),
        sa.Column(
            "origin",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment="format, file and line of an imported next state.",
        ),
        sa.Column(
            "unknown",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="Fields of a later event version, kept as they came.",
        ),
        sa.Column("sanitised", sa.Boolean(), nullable=False, comment="Some text held NUL or lone surrogates."),
        sa.Column("raw", sa.LargeBinary(), nullable=True, comment="The original JSON (ASCII escapes) where sanitised."),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When this row was inserted (database clock).",
        ),
        sa.CheckConstraint(
            "kind IN ('user_reply', 'tool_result', 'terminal_output', 'gui_change', 'test_verdict')",
            name=op.f("ck_next_states_kind"),
        ),
        sa.PrimaryKeyConstraint("next_state_id", name=op.f("pk_next_states")),
        comment="What answered a turn.",
    )
    op.create_index("ix_next_states_session_id", "next_states", ["session_id"], unique=False)
    op.create_index("ix_next_states_turn_id", "next_states", ["turn_id"], unique=False)
    op.create_table(
        "outbox",
        sa.Column(
            "outbox_id", sa.BigInteger(), sa.Identity(always=True), nullable=False, comment="Order of sending a topic."
        ),
        sa.Column("topic", sa.Text(), nullable=False, comment="Where it goes."),
        sa.Column("message_id", sa.Text(), nullable=False, comment="ce_id: readers drop repeats by it."),
        sa.Column("message_type", sa.Text(), nullable=False, comment="ce_type."),
        sa.Column("key", sa.Text(), nullable=False, comment="Kafka key."),
        sa.Column("value", sa.LargeBinary(), nullable=False, comment="JSON."),
        sa.Column(
            "sent_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When the broker acknowledged it; NULL: not yet.",
        ),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When this row was inserted (database clock).",
        ),
        sa.PrimaryKeyConstraint("outbox_id", name=op.f("pk_outbox")),
        comment="Messages committed with the rows that they announce; the relay sends them, at least once, in order.",
    )
    op.create_index(
        "ix_outbox_unsent", "outbox", ["topic", "outbox_id"], unique=False, postgresql_where=sa.text("sent_at IS NULL")
    )
    op.create_index("uq_outbox_topic_message_id", "outbox", ["topic", "message_id"], unique=True)
    op.create_table(
        "runs",
        sa.Column("run", sa.Text(), nullable=False, comment="Name of the run."),
        sa.Column("kind", sa.Text(), nullable=False, comment="live, or replay over a range of the log."),
        sa.Column("policy", sa.Text(), nullable=False, comment="Policy that it trains."),
        sa.Column("recipe_name", sa.Text(), nullable=False, comment="Recipe by name."),
        sa.Column(
            "recipe", postgresql.JSONB(astext_type=sa.Text()), nullable=False, comment="The whole recipe as data."
        ),
        sa.Column("recipe_digest", sa.Text(), nullable=False, comment="SHA-256 of the recipe."),
        sa.Column(
            "ended_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When it stopped taking new turns; NULL: new turns of the log open samples in it.",
        ),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When this row was inserted (database clock).",
        ),
        sa.CheckConstraint("kind IN ('live', 'replay')", name=op.f("ck_runs_kind")),
        sa.PrimaryKeyConstraint("run", name=op.f("pk_runs")),
        comment="A name, a recipe and a range of the log. Everything derived names its run.",
    )
    op.create_table(
        "sessions",
        sa.Column("session_id", sa.Text(), nullable=False, comment="Session: the event key."),
        sa.Column("close_reason", sa.Text(), nullable=True, comment="Why no more turns follow; NULL while open."),
        sa.Column(
            "expected_turns",
            sa.Integer(),
            nullable=True,
            comment="How many turns the closing event promised; NULL: not said.",
        ),
        sa.Column(
            "expected_next_states",
            sa.Integer(),
            nullable=True,
            comment="How many next states the closing event promised.",
        ),
        sa.Column(
            "closed_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When the closing event was recorded; NULL while open.",
        ),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When this row was inserted (database clock).",
        ),
        sa.PrimaryKeyConstraint("session_id", name=op.f("pk_sessions")),
        comment="One conversation, a tree of turns.",
    )
    op.create_table(
        "turn_completions",
        sa.Column("turn_id", sa.Text(), nullable=False, comment="The turn that is complete."),
        sa.Column("completed_by", sa.Text(), nullable=False, comment="next_turn or session_closed."),
        sa.Column("cause_id", sa.Text(), nullable=False, comment="The turn or session whose event completed it."),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When this row was inserted (database clock).",
        ),
        sa.CheckConstraint(
            "completed_by IN ('next_turn', 'session_closed')", name=op.f("ck_turn_completions_completed_by")
        ),
        sa.PrimaryKeyConstraint("turn_id", name=op.f("pk_turn_completions")),
        comment="A turn's next states are all known: the next turn of its branch is recorded, or its session is closed.",
    )
    op.create_table(
        "turns",
        sa.Column("turn_id", sa.Text(), nullable=False, comment="Deterministic id of the turn."),
        sa.Column("session_id", sa.Text(), nullable=False, comment="Its session."),
        sa.Column(
            "parent_turn_id",
            sa.Text(),
            nullable=True,
            comment="The turn that this one follows; NULL for a root. May arrive later.",
        ),
        sa.Column("ordinal", sa.Integer(), nullable=False, comment="Place in its branch, from 0."),
        sa.Column("kind", sa.Text(), nullable=False, comment="main, or side (recorded, not trained)."),
        sa.Column(
            "messages",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="The request's messages as sent.",
        ),
        sa.Column(
            "tools", postgresql.JSONB(astext_type=sa.Text()), nullable=False, comment="The request's tools as sent."
        ),
        sa.Column(
            "response",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="content, reasoning and tool_calls with raw arguments.",
        ),
        sa.Column("finish_reason", sa.Text(), nullable=False, comment="stop, length, tool_calls, aborted or error."),
        sa.Column("policy", sa.Text(), nullable=False, comment="Name of the policy that answered."),
        sa.Column(
            "version_spans",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="[{version, start, end}] over the response tokens.",
        ),
        sa.Column(
            "oldest_version",
            sa.Integer(),
            nullable=True,
            comment="Lowest weight version in the spans; NULL where unknown.",
        ),
        sa.Column(
            "newest_version",
            sa.Integer(),
            nullable=True,
            comment="Highest weight version in the spans; NULL where unknown.",
        ),
        sa.Column(
            "sampling",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="Sampling parameters of the request.",
        ),
        sa.Column("token_source", sa.Text(), nullable=False, comment="engine, retokenised or none."),
        sa.Column("prompt_ids", sa.LargeBinary(), nullable=False, comment="int32 little-endian, 4 bytes a token."),
        sa.Column("response_ids", sa.LargeBinary(), nullable=False, comment="int32 little-endian, 4 bytes a token."),
        sa.Column("response_logprobs", sa.LargeBinary(), nullable=False, comment="float32 little-endian, as sampled."),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False, comment="Number of prompt ids."),
        sa.Column("response_tokens", sa.Integer(), nullable=False, comment="Number of response ids."),
        sa.Column("group_id", sa.Text(), nullable=True, comment="Candidates of one prompt share it."),
        sa.Column(
            "next_state_ids",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="Next states of the parent that this request carried.",
        ),
        sa.Column("started_at", sa.Text(), nullable=True, comment="Start by the source's clock, ISO 8601 as given."),
        sa.Column("ended_at", sa.Text(), nullable=True, comment="End by the source's clock, ISO 8601 as given."),
        sa.Column(
            "latency_ms",
            sa.Double(),
            nullable=True,
            comment="End minus start; 0 with clock_skew where the end was earlier.",
        ),
        sa.Column("clock_skew", sa.Boolean(), nullable=False, comment="The source's end was before its start."),
        sa.Column(
            "origin",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment="format, file and line of an imported turn.",
        ),
        sa.Column(
            "unknown",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="Fields of a later event version, kept as they came.",
        ),
        sa.Column("sanitised", sa.Boolean(), nullable=False, comment="Some text held NUL or lone surrogates."),
        sa.Column("raw", sa.LargeBinary(), nullable=True, comment="The original JSON (ASCII escapes) where sanitised."),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
            comment="When this row was inserted (database clock).",
        ),
        sa.CheckConstraint(
            "finish_reason IN ('stop', 'length', 'tool_calls', 'aborted', 'error')", name=op.f("ck_turns_finish_reason")
        ),
        sa.CheckConstraint("kind IN ('main', 'side')", name=op.f("ck_turns_kind")),
        sa.CheckConstraint("token_source IN ('engine', 'retokenised', 'none')", name=op.f("ck_turns_token_source")),
        sa.PrimaryKeyConstraint("turn_id", name=op.f("pk_turns")),
        comment="The policy answered once: text, exact tokens, log-probs, and who made them.",
    )
    op.create_index("ix_turns_parent_turn_id", "turns", ["parent_turn_id"], unique=False)
    op.create_index("ix_turns_session_id", "turns", ["session_id"], unique=False)
    op.create_table(
        "weight_loads",
        sa.Column("server", sa.Text(), nullable=False, comment="Address of the policy server."),
        sa.Column("policy", sa.Text(), nullable=False, comment="Policy."),
        sa.Column("version", sa.Integer(), nullable=False, comment="Version that was loaded, or failed to."),
        sa.Column("attempt", sa.Integer(), nullable=False, comment="From 1."),
        sa.Column(
            "status", sa.Text(), nullable=False, comment="serving, or failed: the server kept the version before."
        ),
        sa.Column("detail", sa.Text(), nullable=True, comment="The fault, in words."),
        sa.Column(
            "canary_before", sa.Double(), nullable=True, comment="Log-prob of the canary text before the load, nats."
        ),
        sa.Column("canary_after", sa.Double(), nullable=True, comment="The same after the load."),
        sa.Column("seconds", sa.Double(), nullable=False, comment="From the first call to the resume."),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When this row was inserted (database clock).",
        ),
        sa.CheckConstraint("status IN ('serving', 'failed')", name=op.f("ck_weight_loads_status")),
        sa.PrimaryKeyConstraint("server", "policy", "version", "attempt", name=op.f("pk_weight_loads")),
        comment="Which server serves which version since when, with the canary that shows that the weights moved.",
    )
    op.create_table(
        "evaluations",
        sa.Column("run", sa.Text(), nullable=False, comment="Its run."),
        sa.Column("turn_id", sa.Text(), nullable=False, comment="The turn to evaluate."),
        sa.Column("signal", sa.Text(), nullable=False, comment="reward, hint or teacher."),
        sa.Column("state", sa.Text(), nullable=False, comment="waiting, open, claimed, done or failed."),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False, comment="Times it was claimed."),
        sa.Column("worker", sa.Text(), nullable=True, comment="Who holds the claim."),
        sa.Column(
            "lease_until",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="End of the claim; afterwards anybody may claim it.",
        ),
        sa.Column(
            "available_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="Not before this time (backoff after a fault); NULL: at once.",
        ),
        sa.Column("reason", sa.Text(), nullable=True, comment="The last fault, or why it failed."),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True, comment="When it became done or failed."),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When this row was inserted (database clock).",
        ),
        sa.CheckConstraint("signal IN ('reward', 'hint', 'teacher')", name=op.f("ck_evaluations_signal")),
        sa.CheckConstraint(
            "state IN ('waiting', 'open', 'claimed', 'done', 'failed')", name=op.f("ck_evaluations_state")
        ),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_evaluations_run_runs")),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.turn_id"], name=op.f("fk_evaluations_turn_id_turns")),
        sa.PrimaryKeyConstraint("run", "turn_id", "signal", name=op.f("pk_evaluations")),
        comment="Questions to judges, hint givers and teachers: claimed with SKIP LOCKED and a lease.",
    )
    op.create_index(
        "ix_evaluations_claimable",
        "evaluations",
        ["signal", "available_at", "created_at"],
        unique=False,
        postgresql_where=sa.text("state IN ('open', 'claimed')"),
    )
    op.create_index("ix_evaluations_turn_id", "evaluations", ["turn_id"], unique=False)
    op.create_table(
        "hints",
        sa.Column("run", sa.Text(), nullable=False, comment="Its run."),
        sa.Column("turn_id", sa.Text(), nullable=False, comment="Its turn."),
        sa.Column("status", sa.Text(), nullable=False, comment="accepted, none (nothing to learn from) or failed."),
        sa.Column("text", sa.Text(), nullable=True, comment="The chosen hint; NULL unless accepted."),
        sa.Column("annotator_kind", sa.Text(), nullable=True, comment="LLM or CODE; NULL where failed."),
        sa.Column("votes_valid", sa.Integer(), nullable=False, comment="Valid votes."),
        sa.Column("votes_total", sa.Integer(), nullable=False, comment="Votes asked for."),
        sa.Column("reason", sa.Text(), nullable=True, comment="Why there is none, or the fault."),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When this row was inserted (database clock).",
        ),
        sa.CheckConstraint("(status = 'accepted') = (text IS NOT NULL)", name=op.f("ck_hints_accepted_has_text")),
        sa.CheckConstraint("status IN ('accepted', 'none', 'failed')", name=op.f("ck_hints_status")),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_hints_run_runs")),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.turn_id"], name=op.f("fk_hints_turn_id_turns")),
        sa.PrimaryKeyConstraint("run", "turn_id", name=op.f("pk_hints")),
        comment="The directive signal: what the next state says the turn should have done.",
    )
    op.create_index("ix_hints_turn_id", "hints", ["turn_id"], unique=False)
    op.create_table(
        "micro_batches",
        sa.Column("micro_batch_id", sa.Text(), nullable=False, comment="Deterministic id of (run, seq, digest)."),
        sa.Column("run", sa.Text(), nullable=False, comment="Its run."),
        sa.Column("policy", sa.Text(), nullable=False, comment="Policy that it trains."),
        sa.Column("seq", sa.Integer(), nullable=False, comment="Place in the run's total order, from 1 without a gap."),
        sa.Column("recipe_digest", sa.Text(), nullable=False, comment="Recipe that made it."),
        sa.Column("digest", sa.Text(), nullable=False, comment="SHA-256 over its samples' content digests, in order."),
        sa.Column("size", sa.Integer(), nullable=False, comment="Number of samples."),
        sa.Column("state", sa.Text(), nullable=False, comment="published, then consumed."),
        sa.Column("consumed_at", sa.DateTime(timezone=True), nullable=True, comment="When the learner committed it."),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When this row was inserted (database clock).",
        ),
        sa.CheckConstraint("state IN ('published', 'consumed')", name=op.f("ck_micro_batches_state")),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_micro_batches_run_runs")),
        sa.PrimaryKeyConstraint("micro_batch_id", name=op.f("pk_micro_batches")),
        comment="An ordered list of samples (samples.micro_batch_id, samples.position), trained together.",
    )
    op.create_index("uq_micro_batches_run_seq", "micro_batches", ["run", "seq"], unique=True)
    op.create_table(
        "rewards",
        sa.Column("run", sa.Text(), nullable=False, comment="Its run."),
        sa.Column("turn_id", sa.Text(), nullable=False, comment="Its turn."),
        sa.Column("status", sa.Text(), nullable=False, comment="scored, tie, abstained or failed."),
        sa.Column(
            "value", sa.Double(), nullable=True, comment="+1, 0 or -1; NULL where abstained or failed, never 0 instead."
        ),
        sa.Column("annotator_kind", sa.Text(), nullable=True, comment="LLM, CODE or HUMAN; NULL where failed."),
        sa.Column("votes_valid", sa.Integer(), nullable=False, comment="Valid votes."),
        sa.Column("votes_total", sa.Integer(), nullable=False, comment="Votes asked for."),
        sa.Column("explanation", sa.Text(), nullable=True, comment="Why, in words."),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When this row was inserted (database clock).",
        ),
        sa.CheckConstraint(
            "(status IN ('scored', 'tie')) = (value IS NOT NULL)", name=op.f("ck_rewards_null_is_not_zero")
        ),
        sa.CheckConstraint("annotator_kind IN ('LLM', 'CODE', 'HUMAN')", name=op.f("ck_rewards_annotator_kind")),
        sa.CheckConstraint("status IN ('scored', 'tie', 'abstained', 'failed')", name=op.f("ck_rewards_status")),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_rewards_run_runs")),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.turn_id"], name=op.f("fk_rewards_turn_id_turns")),
        sa.PrimaryKeyConstraint("run", "turn_id", name=op.f("pk_rewards")),
        comment="The evaluative signal: the majority of the valid votes.",
    )
    op.create_index("ix_rewards_turn_id", "rewards", ["turn_id"], unique=False)
    op.create_table(
        "samples",
        sa.Column("sample_id", sa.Text(), nullable=False, comment="Deterministic id of (run, turn)."),
        sa.Column("run", sa.Text(), nullable=False, comment="Its run."),
        sa.Column("turn_id", sa.Text(), nullable=False, comment="Its turn."),
        sa.Column("session_id", sa.Text(), nullable=False, comment="Its session."),
        sa.Column("state", sa.Text(), nullable=False, comment="pending, ready, batched, trained or dropped."),
        sa.Column("drop_reason", sa.Text(), nullable=True, comment="Why it was dropped: one of a closed list."),
        sa.Column("drop_detail", sa.Text(), nullable=True, comment="The same in words, with numbers."),
        sa.Column(
            "linked", sa.Boolean(), server_default="false", nullable=False, comment="Its evaluations were opened."
        ),
        sa.Column(
            "content_digest",
            sa.Text(),
            nullable=True,
            comment="SHA-256 of what is trained: ids, log-probs, reward, teacher scores.",
        ),
        sa.Column("micro_batch_id", sa.Text(), nullable=True, comment="The micro-batch that holds it."),
        sa.Column("position", sa.Integer(), nullable=True, comment="Place in its micro-batch, from 0."),
        sa.Column(
            "staleness",
            sa.Integer(),
            nullable=True,
            comment="Weight versions between its oldest token and the weights that used it.",
        ),
        sa.Column(
            "ready_at", sa.DateTime(timezone=True), nullable=True, comment="When its last evaluation became final."
        ),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=True, comment="Last change of state."),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When this row was inserted (database clock).",
        ),
        sa.CheckConstraint(
            "(state = 'dropped') = (drop_reason IS NOT NULL)", name=op.f("ck_samples_dropped_has_reason")
        ),
        sa.CheckConstraint(
            "drop_reason IN ('side_turn', 'no_next_state', 'aborted', 'error', 'no_tokens', 'retokenised', 'logprob_length_mismatch', 'non_finite_logprob', 'other_policy', 'unknown_version', 'reward_abstained', 'reward_failed', 'hint_failed', 'no_signal', 'stale', 'non_finite_batch', 'masked_batch', 'erased')",
            name=op.f("ck_samples_drop_reason"),
        ),
        sa.CheckConstraint(
            "state IN ('pending', 'ready', 'batched', 'trained', 'dropped')", name=op.f("ck_samples_state")
        ),
        sa.CheckConstraint(
            "state NOT IN ('batched', 'trained') OR micro_batch_id IS NOT NULL",
            name=op.f("ck_samples_batched_has_batch"),
        ),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_samples_run_runs")),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.turn_id"], name=op.f("fk_samples_turn_id_turns")),
        sa.PrimaryKeyConstraint("sample_id", name=op.f("pk_samples")),
        comment="What a run makes of a turn: one row a (run, turn), the ledger's unit.",
    )
    op.create_index("ix_samples_micro_batch_id", "samples", ["micro_batch_id"], unique=False)
    op.create_index("ix_samples_run_state", "samples", ["run", "state", "created_at"], unique=False)
    op.create_index("ix_samples_turn_id", "samples", ["turn_id"], unique=False)
    op.create_index("uq_samples_run_turn_id", "samples", ["run", "turn_id"], unique=True)
    op.create_table(
        "teacher_scores",
        sa.Column("run", sa.Text(), nullable=False, comment="Its run."),
        sa.Column("turn_id", sa.Text(), nullable=False, comment="Its turn."),
        sa.Column("teacher", sa.Text(), nullable=False, comment="Model name of the teacher."),
        sa.Column(
            "teacher_version",
            sa.Integer(),
            nullable=True,
            comment="Weight version that scored; NULL where the server did not say.",
        ),
        sa.Column(
            "hinted_prompt_ids", sa.LargeBinary(), nullable=False, comment="int32: the prompt with the hint in it."
        ),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False, comment="float32, one for each response token."),
        sa.Column("top_k", sa.Integer(), nullable=False, comment="Alternatives a token."),
        sa.Column("topk_ids", sa.LargeBinary(), nullable=False, comment="int32 [response_tokens, top_k], row-major."),
        sa.Column(
            "topk_logprobs", sa.LargeBinary(), nullable=False, comment="float32 [response_tokens, top_k], row-major."
        ),
        sa.Column(
            "mean_gain",
            sa.Double(),
            nullable=True,
            comment="Mean of teacher minus behaviour log-prob over the response, nats a token.",
        ),
        sa.Column("answer_digest", sa.Text(), nullable=True, comment="Key of the answer in model_answers."),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When this row was inserted (database clock).",
        ),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_teacher_scores_run_runs")),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.turn_id"], name=op.f("fk_teacher_scores_turn_id_turns")),
        sa.PrimaryKeyConstraint("run", "turn_id", name=op.f("pk_teacher_scores")),
        comment="The teacher's log-probs of the original response ids under the hint.",
    )
    op.create_index("ix_teacher_scores_turn_id", "teacher_scores", ["turn_id"], unique=False)
    op.create_table(
        "votes",
        sa.Column("run", sa.Text(), nullable=False, comment="Its run."),
        sa.Column("turn_id", sa.Text(), nullable=False, comment="Its turn."),
        sa.Column("signal", sa.Text(), nullable=False, comment="reward or hint."),
        sa.Column("vote", sa.Integer(), nullable=False, comment="Number of the vote, from 0."),
        sa.Column("annotator_kind", sa.Text(), nullable=False, comment="LLM, CODE or HUMAN."),
        sa.Column("annotator", sa.Text(), nullable=False, comment="Model, rule or person."),
        sa.Column(
            "status", sa.Text(), nullable=False, comment="valid, invalid (no declared answer) or error (no answer)."
        ),
        sa.Column("score", sa.SmallInteger(), nullable=True, comment="+1, 0 or -1 of a valid vote; NULL otherwise."),
        sa.Column("explanation", sa.Text(), nullable=True, comment="The hint of a hint vote, or why the vote fell so."),
        sa.Column("raw", sa.Text(), nullable=True, comment="The judge's text as it came."),
        sa.Column("prompt_digest", sa.Text(), nullable=True, comment="SHA-256 of the prompt template; NULL for code."),
        sa.Column(
            "answer_digest", sa.Text(), nullable=True, comment="Key of the answer in model_answers; NULL for code."
        ),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When this row was inserted (database clock).",
        ),
        sa.CheckConstraint("(status = 'valid') = (score IS NOT NULL)", name=op.f("ck_votes_valid_has_score")),
        sa.CheckConstraint("annotator_kind IN ('LLM', 'CODE', 'HUMAN')", name=op.f("ck_votes_annotator_kind")),
        sa.CheckConstraint("signal IN ('reward', 'hint')", name=op.f("ck_votes_signal")),
        sa.CheckConstraint("status IN ('valid', 'invalid', 'error')", name=op.f("ck_votes_status")),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_votes_run_runs")),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.turn_id"], name=op.f("fk_votes_turn_id_turns")),
        sa.PrimaryKeyConstraint("run", "turn_id", "signal", "vote", name=op.f("pk_votes")),
        comment="Every single vote, invalid ones too, with its raw text.",
    )
    op.create_index("ix_votes_turn_id", "votes", ["turn_id"], unique=False)
    op.create_table(
        "training_steps",
        sa.Column("run", sa.Text(), nullable=False, comment="Its run."),
        sa.Column("step", sa.Integer(), nullable=False, comment="Counts the run's consumed micro-batches, from 1."),
        sa.Column("micro_batch_id", sa.Text(), nullable=False, comment="The micro-batch: consumed once."),
        sa.Column("policy", sa.Text(), nullable=False, comment="Policy."),
        sa.Column(
            "version", sa.Integer(), nullable=True, comment="Weight version that it made; NULL where no step was taken."
        ),
        sa.Column(
            "skipped_reason", sa.Text(), nullable=True, comment="Why no optimizer step was taken; NULL where one was."
        ),
        sa.Column(
            "metrics",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="Loss, clip fraction, ratio percentiles, KL, ... NaN is absent.",
        ),
        sa.Column("samples_trained", sa.Integer(), nullable=False, comment="Samples that carried a gradient."),
        sa.Column("samples_dropped", sa.Integer(), nullable=False, comment="Samples dropped at use (stale)."),
        sa.Column("tokens", sa.Integer(), nullable=False, comment="Response tokens trained."),
        sa.Column("seconds", sa.Double(), nullable=False, comment="Wall time of the step."),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When this row was inserted (database clock).",
        ),
        sa.CheckConstraint(
            "(version IS NULL) = (skipped_reason IS NOT NULL)", name=op.f("ck_training_steps_version_or_reason")
        ),
        sa.ForeignKeyConstraint(
            ["micro_batch_id"],
            ["micro_batches.micro_batch_id"],
            name=op.f("fk_training_steps_micro_batch_id_micro_batches"),
        ),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_training_steps_run_runs")),
        sa.PrimaryKeyConstraint("run", "step", name=op.f("pk_training_steps")),
        sa.UniqueConstraint("micro_batch_id", name=op.f("uq_training_steps_micro_batch_id")),
        comment="One row for each consumed micro-batch, committed with its weight version in one transaction.",
    )
    op.create_table(
        "weight_versions",
        sa.Column("policy", sa.Text(), nullable=False, comment="Policy."),
        sa.Column("version", sa.Integer(), nullable=False, comment="0 is the base model."),
        sa.Column(
            "parent_version", sa.Integer(), nullable=True, comment="The version that it was trained from; NULL for 0."
        ),
        sa.Column("run", sa.Text(), nullable=True, comment="Run that made it; NULL for 0."),
        sa.Column("micro_batch_id", sa.Text(), nullable=True, comment="What it learned from."),
        sa.Column("recipe_digest", sa.Text(), nullable=True, comment="Recipe that made it; NULL for 0."),
        sa.Column("path", sa.Text(), nullable=False, comment="Directory in HuggingFace layout."),
        sa.Column(
            "manifest",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="SHA-256 and size of each file, and the lineage.",
        ),
        sa.Column("manifest_sha256", sa.Text(), nullable=False, comment="SHA-256 of the manifest's canonical JSON."),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When this row was inserted (database clock).",
        ),
        sa.ForeignKeyConstraint(
            ["micro_batch_id"],
            ["micro_batches.micro_batch_id"],
            name=op.f("fk_weight_versions_micro_batch_id_micro_batches"),
        ),
        sa.ForeignKeyConstraint(["run"], ["runs.run"], name=op.f("fk_weight_versions_run_runs")),
        sa.PrimaryKeyConstraint("policy", "version", name=op.f("pk_weight_versions")),
        comment="Weights on disk, whole and checksummed before this row was committed.",
    )


def downgrade() -> None:
    """Undo: every table of the contract"""
    op.drop_table("weight_versions")
    op.drop_table("training_steps")
    op.drop_index("ix_votes_turn_id", table_name="votes")
    op.drop_table("votes")
    op.drop_index("ix_teacher_scores_turn_id", table_name="teacher_scores")
    op.drop_table("teacher_scores")
    op.drop_index("uq_samples_run_turn_id", table_name="samples")
    op.drop_index("ix_samples_turn_id", table_name="samples")
    op.drop_index("ix_samples_run_state", table_name="samples")
    op.drop_index("ix_samples_micro_batch_id", table_name="samples")
    op.drop_table("samples")
    op.drop_index("ix_rewards_turn_id", table_name="rewards")
    op.drop_table("rewards")
    op.drop_index("uq_micro_batches_run_seq", table_name="micro_batches")
    op.drop_table("micro_batches")
    op.drop_index("ix_hints_turn_id", table_name="hints")
    op.drop_table("hints")
    op.drop_index("ix_evaluations_turn_id", table_name="evaluations")
    op.drop_index(
        "ix_evaluations_claimable", table_name="evaluations", postgresql_where=sa.text("state IN ('open', 'claimed')")
    )
    op.drop_table("evaluations")
    op.drop_table("weight_loads")
    op.drop_index("ix_turns_session_id", table_name="turns")
    op.drop_index("ix_turns_parent_turn_id", table_name="turns")
    op.drop_table("turns")
    op.drop_table("turn_completions")
    op.drop_table("sessions")
    op.drop_table("runs")
    op.drop_index("uq_outbox_topic_message_id", table_name="outbox")
    op.drop_index("ix_outbox_unsent", table_name="outbox", postgresql_where=sa.text("sent_at IS NULL"))
    op.drop_table("outbox")
    op.drop_index("ix_next_states_turn_id", table_name="next_states")
    op.drop_index("ix_next_states_session_id", table_name="next_states")
    op.drop_table("next_states")
    op.drop_table("model_answers")
    op.drop_index("ix_feedback_turn_id", table_name="feedback")
    op.drop_table("feedback")
    op.drop_table("events")
    op.drop_index("uq_dead_letters_topic_partition_record_offset", table_name="dead_letters")
    op.drop_table("dead_letters")
