"""The oldest samples of a replay in one state are found without passing those in another, and by one index less.

Nothing asked for samples of a state by `created_at`. Samples that are in no micro-batch are looked for by none.

Revision ID: 0010
Revises: 0009
"""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Order within a state."""
    op.execute("DROP INDEX ix_samples_replay_order, ix_samples_run_state, ix_samples_micro_batch_id")
    op.execute("CREATE INDEX ix_samples_run_state ON samples (run, state, replay_order)")
    op.execute("CREATE INDEX ix_samples_micro_batch_id ON samples (micro_batch_id) WHERE micro_batch_id IS NOT NULL")


def downgrade() -> None:
    """Order within the run."""
    op.execute("DROP INDEX ix_samples_run_state, ix_samples_micro_batch_id")
    op.execute("CREATE INDEX ix_samples_micro_batch_id ON samples (micro_batch_id)")
    op.execute("CREATE INDEX ix_samples_run_state ON samples (run, state, created_at)")
    op.execute("CREATE INDEX ix_samples_replay_order ON samples (run, replay_order) WHERE replay_order IS NOT NULL")
