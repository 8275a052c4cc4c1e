"""Runs that were deleted keep their row, so that no other run takes their name.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    comment = "When everything that it derived was deleted; its name stays taken."
    op.add_column("runs", sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True, comment=comment))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("runs", "deleted_at")
