"""The oldest samples of a replay in one state, without passing those in another.

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
    op.execute("DROP INDEX ix_samples_replay_order")
    op.execute(
        "CREATE INDEX ix_samples_replay_order ON samples (run, state, replay_order) WHERE replay_order IS NOT NULL"
    )


def downgrade() -> None:
    """Order within the run."""
    op.execute("DROP INDEX ix_samples_replay_order")
    op.execute("CREATE INDEX ix_samples_replay_order ON samples (run, replay_order) WHERE replay_order IS NOT NULL")
