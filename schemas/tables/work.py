"""Work: what a run still has to do with its turns, claimed by state and never by serial id."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from schemas.states import DROP_REASONS, EVALUATION_STATES, RUN_KINDS, SAMPLE_STATES, SIGNALS
from schemas.tables.base import created_at, metadata, one_of, timestamp

runs = Table(
    "runs",
    metadata,
    Column("run", Text, primary_key=True, comment="Name of the run."),
    Column("kind", Text, nullable=False, comment="live, or replay over a range of the log."),
    Column("policy", Text, nullable=False, comment="Policy that it trains."),
    Column("recipe_name", Text, nullable=False, comment="Recipe by name."),
    Column("recipe", JSONB, nullable=False, comment="The whole recipe as data."),
    Column("recipe_digest", Text, nullable=False, comment="SHA-256 of the recipe."),
    timestamp("ended_at", "When it stopped taking new turns; NULL: new turns of the log open samples in it."),
    timestamp("deleted_at", "When everything that it derived was deleted; its name stays taken."),
    created_at(precise=True),
    one_of("kind", RUN_KINDS),
    comment="A name, a recipe and a range of the log. Everything derived names its run.",
)

samples = Table(
    "samples",
    metadata,
    Column("sample_id", Text, primary_key=True, comment="Deterministic id of (run, turn)."),
    Column("run", Text, ForeignKey("runs.run"), nullable=False, comment="Its run."),
    Column("turn_id", Text, ForeignKey("turns.turn_id"), nullable=False, comment="Its turn."),
    Column("session_id", Text, nullable=False, comment="Its session."),
    Column("state", Text, nullable=False, comment="pending, ready, batched, trained or dropped."),
    Column("drop_reason", Text, comment="Why it was dropped: one of a closed list."),
    Column("drop_detail", Text, comment="The same in words, with numbers."),
    Column("linked", Boolean, nullable=False, server_default="false", comment="Its evaluations were opened."),
    Column("content_digest", Text, comment="SHA-256 of what is trained: ids, log-probs, reward, teacher scores."),
    Column("micro_batch_id", Text, comment="The micro-batch that holds it."),
    Column("position", Integer, comment="Place in its micro-batch, from 0."),
    Column("replay_order", BigInteger, comment="Place of its turn in the log that a replay reads; NULL in a live run."),
    Column("feedback_id", Text, comment="The correction that it is trained with, by its feedback; NULL: none."),
    Column("staleness", Integer, comment="Weight versions between its oldest token and the weights that used it."),
    timestamp("ready_at", "When its last evaluation became final."),
    timestamp("updated_at", "Last change of state."),
    created_at(),
    Index("uq_samples_run_turn_id", "run", "turn_id", unique=True),
    Index("ix_samples_run_state", "run", "state", "replay_order"),
    Index("ix_samples_turn_id", "turn_id"),
    Index("ix_samples_micro_batch_id", "micro_batch_id", postgresql_where=text("micro_batch_id IS NOT NULL")),
    one_of("state", SAMPLE_STATES),
    one_of("drop_reason", DROP_REASONS),
    CheckConstraint("(state = 'dropped') = (drop_reason IS NOT NULL)", name="dropped_has_reason"),
    CheckConstraint("state NOT IN ('batched', 'trained') OR micro_batch_id IS NOT NULL", name="batched_has_batch"),
    comment="What a run makes of a turn: one row a (run, turn), the ledger's unit.",
)

evaluations = Table(
    "evaluations",
    metadata,
    Column("run", Text, ForeignKey("runs.run"), nullable=False, comment="Its run."),
    Column("turn_id", Text, ForeignKey("turns.turn_id"), nullable=False, comment="The turn to evaluate."),
    Column("signal", Text, nullable=False, comment="reward, hint or teacher."),
    Column("state", Text, nullable=False, comment="waiting, open, claimed, done or failed."),
    Column("priority", Integer, nullable=False, server_default="0", comment="Lower first: 0 live, 1 replay."),
    Column("attempts", Integer, nullable=False, server_default="0", comment="Times it was claimed."),
    Column("worker", Text, comment="Who holds the claim."),
    timestamp("lease_until", "End of the claim; afterwards anybody may claim it."),
    timestamp("available_at", "Not before this time (backoff after a fault); NULL: at once."),
    Column("reason", Text, comment="The last fault, or why it failed."),
    timestamp("finished_at", "When it became done or failed."),
    created_at(),
    PrimaryKeyConstraint("run", "turn_id", "signal"),
    Index(
        "ix_evaluations_open",
        "signal",
        "priority",
        text("COALESCE(available_at, created_at)"),
        "turn_id",
        postgresql_where=text("state = 'open'"),
    ),
    Index("ix_evaluations_claimed", "signal", "lease_until", postgresql_where=text("state = 'claimed'")),
    Index("ix_evaluations_turn_id", "turn_id"),
    one_of("signal", SIGNALS),
    one_of("state", EVALUATION_STATES),
    comment="Questions to judges, hint givers and teachers: claimed with SKIP LOCKED and a lease.",
)

open_questions = Table(
    "open_questions",
    metadata,
    Column("answer_digest", Text, primary_key=True, comment="Key that the answer will have in model_answers."),
    Column("asker", Text, nullable=False, comment="Worker that asks."),
    timestamp("lease_until", "Until then others wait for its answer; afterwards anybody may ask.", nullable=False),
    comment="What model servers are being asked now: workers with the same question wait, and one pays.",
)
