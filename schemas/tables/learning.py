"""Learning: micro-batches, training steps, weight versions, and who serves them."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import JSONB

from schemas.states import MICRO_BATCH_STATES
from schemas.tables.base import created_at, metadata, one_of, timestamp

micro_batches = Table(
    "micro_batches",
    metadata,
    Column("micro_batch_id", Text, primary_key=True, comment="Deterministic id of (run, seq, digest)."),
    Column("run", Text, ForeignKey("runs.run"), nullable=False, comment="Its run."),
    Column("policy", Text, nullable=False, comment="Policy that it trains."),
    Column("seq", Integer, nullable=False, comment="Place in the run's total order, from 1 without a gap."),
    Column("recipe_digest", Text, nullable=False, comment="Recipe that made it."),
    Column("digest", Text, nullable=False, comment="SHA-256 over its samples' content digests, in order."),
    Column("size", Integer, nullable=False, comment="Number of samples."),
    Column("state", Text, nullable=False, comment="published, then consumed."),
    timestamp("consumed_at", "When the learner committed it."),
    created_at(),
    Index("uq_micro_batches_run_seq", "run", "seq", unique=True),
    one_of("state", MICRO_BATCH_STATES),
    comment="An ordered list of samples (samples.micro_batch_id, samples.position), trained together.",
)

weight_versions = Table(
    "weight_versions",
    metadata,
    Column("policy", Text, nullable=False, comment="Policy."),
    Column("version", Integer, nullable=False, comment="0 is the base model."),
    Column("parent_version", Integer, comment="The version that it was trained from; NULL for 0."),
    Column("run", Text, ForeignKey("runs.run"), comment="Run that made it; NULL for 0."),
    Column("micro_batch_id", Text, ForeignKey("micro_batches.micro_batch_id"), comment="What it learned from."),
    Column("recipe_digest", Text, comment="Recipe that made it; NULL for 0."),
    Column("path", Text, nullable=False, comment="Directory in HuggingFace layout."),
    Column("manifest", JSONB, nullable=False, comment="SHA-256 and size of each file, and the lineage."),
    Column("manifest_sha256", Text, nullable=False, comment="SHA-256 of the manifest's canonical JSON."),
    created_at(),
    PrimaryKeyConstraint("policy", "version"),
    comment="Weights on disk, whole and checksummed before this row was committed.",
)

training_steps = Table(
    "training_steps",
    metadata,
    Column("run", Text, ForeignKey("runs.run"), nullable=False, comment="Its run."),
    Column("step", Integer, nullable=False, comment="Counts the run's consumed micro-batches, from 1."),
    Column(
        "micro_batch_id",
        Text,
        ForeignKey("micro_batches.micro_batch_id"),
        nullable=False,
        unique=True,
        comment="The micro-batch: consumed once.",
    ),
    Column("policy", Text, nullable=False, comment="Policy."),
    Column("version", Integer, comment="Weight version that it made; NULL where no step was taken."),
    Column("skipped_reason", Text, comment="Why no optimizer step was taken; NULL where one was."),
    Column(
        "metrics",
        JSONB,
        nullable=False,
        comment="Loss, clip fraction, ratio percentiles, KL, ... NaN is absent.",
    ),
    Column("samples_trained", Integer, nullable=False, comment="Samples that carried a gradient."),
    Column("samples_dropped", Integer, nullable=False, comment="Samples dropped at use (stale)."),
    Column("tokens", Integer, nullable=False, comment="Response tokens trained."),
    Column("seconds", Double, nullable=False, comment="Wall time of the step."),
    created_at(),
    PrimaryKeyConstraint("run", "step"),
    CheckConstraint("(version IS NULL) = (skipped_reason IS NOT NULL)", name="version_or_reason"),
    comment="One row for each consumed micro-batch, committed with its weight version in one transaction.",
)

metric_definitions = Table(
    "metric_definitions",
    metadata,
    Column("name", Text, primary_key=True, comment="Name, as in training_steps.metrics."),
    Column("unit", Text, nullable=False, comment="nats, tokens, samples, versions, seconds; empty: a pure number."),
    Column("heading", Text, nullable=False, comment="What it is shown under: loss, kl, staleness, ..."),
    Column("help", Text, nullable=False, comment="What it says, and what to conclude."),
    comment="What the metrics of steps mean, as the newest learner that started knows them.",
)

weight_loads = Table(
    "weight_loads",
    metadata,
    Column("server", Text, nullable=False, comment="Address of the policy server."),
    Column("policy", Text, nullable=False, comment="Policy."),
    Column("version", Integer, nullable=False, comment="Version that was loaded, or failed to."),
    Column("attempt", Integer, nullable=False, comment="From 1."),
    Column("status", Text, nullable=False, comment="serving, or failed: the server kept the version before."),
    Column("detail", Text, comment="The fault, in words."),
    Column("canary_before", Double, comment="Log-prob of the canary text before the load, nats."),
    Column("canary_after", Double, comment="The same after the load."),
    Column("seconds", Double, nullable=False, comment="From the first call to the resume."),
    created_at(),
    PrimaryKeyConstraint("server", "policy", "version", "attempt"),
    one_of("status", ("serving", "failed")),
    comment="Which server serves which version since when, with the canary that shows that the weights moved.",
)

weight_pins = Table(
    "weight_pins",
    metadata,
    Column("policy", Text, nullable=False, comment="Policy."),
    Column("version", Integer, nullable=False, comment="Version whose files stay."),
    Column("holder", Text, nullable=False, comment="Who needs it: user, or the name of a service or an experiment."),
    created_at(),
    PrimaryKeyConstraint("policy", "version", "holder"),
    ForeignKeyConstraint(["policy", "version"], ["weight_versions.policy", "weight_versions.version"]),
    comment="Weight versions that retention must not delete, whatever their age. The last holder's unpin frees one.",
)

weight_uploads = Table(
    "weight_uploads",
    metadata,
    Column("policy", Text, nullable=False, comment="Policy."),
    Column("version", Integer, nullable=False, comment="Version."),
    Column("url", Text, nullable=False, comment="Where to: the setting learner.upload_url."),
    Column("status", Text, nullable=False, comment="uploaded: read back and equal to the manifest; or failed."),
    Column("attempts", Integer, nullable=False, comment="Tries until now."),
    Column("detail", Text, comment="The last fault, in words."),
    Column("bytes", BigInteger, nullable=False, comment="Size of its files."),
    Column("seconds", Double, nullable=False, comment="Wall time of the last try."),
    timestamp("uploaded_at", "When it was whole there; NULL: not yet."),
    created_at(),
    PrimaryKeyConstraint("policy", "version", "url"),
    ForeignKeyConstraint(["policy", "version"], ["weight_versions.policy", "weight_versions.version"]),
    one_of("status", ("uploaded", "failed")),
    CheckConstraint("(uploaded_at IS NOT NULL) = (status = 'uploaded')", name="uploaded_when"),
    comment="Copies of weight versions in object storage. One without such a copy keeps its files here.",
)
