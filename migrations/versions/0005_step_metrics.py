"""The metrics of steps as rows, with the meaning of each: the learner writes its definitions when it starts.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

STEP_METRICS = """
CREATE VIEW step_metrics AS
SELECT s.run, s.step, s.policy, s.version, m.name, m.value, d.unit, d.help, s.created_at
FROM training_steps s
CROSS JOIN LATERAL (
    SELECT e.key AS name, CAST(e.value #>> '{}' AS double precision) AS value
    FROM jsonb_each(s.metrics) e WHERE jsonb_typeof(e.value) = 'number'
    UNION ALL
    SELECT c.name, c.value
    FROM (VALUES ('seconds', s.seconds),
                 ('samples_trained', CAST(s.samples_trained AS double precision)),
                 ('samples_dropped', CAST(s.samples_dropped AS double precision)),
                 ('tokens_per_second', nullif(s.tokens, 0) / nullif(s.seconds, 0))) c(name, value)
    WHERE c.value IS NOT NULL
) m
LEFT JOIN metric_definitions d ON d.name = m.name
"""

COMMENTS = {
    "run": "The run.",
    "step": "Place among the consumed micro-batches of the run, from 1.",
    "policy": "The policy.",
    "version": "Weight version that the step made; NULL where none was.",
    "name": "The metric. One that cannot be said of a step has no row: it is never 0 or NaN.",
    "value": "Its value.",
    "unit": "nats, tokens, samples, versions or seconds; empty: a pure number; NULL: no learner has said yet.",
    "help": "What it says, in words; NULL: no learner has said yet.",
    "created_at": "When the step was committed (database clock).",
}


def upgrade() -> None:
    """the table of definitions, and the view"""
    op.create_table(
        "metric_definitions",
        sa.Column("name", sa.Text(), nullable=False, comment="Name, as in training_steps.metrics."),
        sa.Column(
            "unit", sa.Text(), nullable=False, comment="nats, tokens, samples, versions, seconds; empty: a pure number."
        ),
        sa.Column("heading", sa.Text(), nullable=False, comment="What it is shown under: loss, kl, staleness, ..."),
        sa.Column("help", sa.Text(), nullable=False, comment="What it says, and what to conclude."),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_metric_definitions")),
        comment="What the metrics of steps mean, as the newest learner that started knows them.",
    )
    op.execute(STEP_METRICS)
    op.execute(
        "COMMENT ON VIEW step_metrics IS 'How does learning go? One row a training step and metric, with its unit.'"
    )
    for column, words in COMMENTS.items():
        op.execute(f"COMMENT ON COLUMN step_metrics.{column} IS '{words}'")


def downgrade() -> None:
    """drop both"""
    op.execute("DROP VIEW step_metrics")
    op.drop_table("metric_definitions")
