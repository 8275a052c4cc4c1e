"""What erasing a session needs: where its events and answers are, whose turns are whose, and when contents went.

Revision ID: 0016
Revises: 0018
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Columns whose absence says nothing was erased, and the indexes that find a session's rows."""
    op.add_column(
        "events",
        sa.Column(
            "dataref", sa.Text(), nullable=True, comment="Claim check that holds its data; NULL: they are on the log."
        ),
    )
    op.add_column(
        "events",
        sa.Column(
            "left_out",
            sa.Boolean(),
            server_default="false",
            nullable=False,
            comment="It came when its session had been erased, so nothing else of it was kept.",
        ),
    )
    op.create_index("ix_events_session_id", "events", ["session_id"])
    op.add_column(
        "sessions",
        sa.Column(
            "erased_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When text and tokens of its rows were removed; NULL: they are there.",
        ),
    )
    op.create_index(
        "ix_sessions_erased", "sessions", ["session_id"], postgresql_where=sa.text("close_reason = 'erased'")
    )
    op.add_column(
        "turns",
        sa.Column(
            "user_digest",
            sa.Text(),
            nullable=True,
            comment="Digest of the user that the request named; NULL: it named none.",
        ),
    )
    op.add_column(
        "turns",
        sa.Column(
            "erased_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When its text and tokens were removed on request; ids and counts stay.",
        ),
    )
    op.create_index(
        "ix_turns_user_digest", "turns", ["user_digest"], postgresql_where=sa.text("user_digest IS NOT NULL")
    )
    op.create_index("ix_feedback_session_id", "feedback", ["session_id"])
    op.add_column(
        "model_answers",
        sa.Column(
            "session_id",
            sa.Text(),
            nullable=True,
            comment="The session that it was asked about first; NULL: about none.",
        ),
    )
    op.create_index(
        "ix_model_answers_session_id",
        "model_answers",
        ["session_id"],
        postgresql_where=sa.text("session_id IS NOT NULL"),
    )


def downgrade() -> None:
    """As it was. What was erased stays erased, and closed as such."""
    op.drop_index("ix_model_answers_session_id", table_name="model_answers")
    op.drop_column("model_answers", "session_id")
    op.drop_index("ix_feedback_session_id", table_name="feedback")
    op.drop_index("ix_turns_user_digest", table_name="turns")
    op.drop_column("turns", "erased_at")
    op.drop_column("turns", "user_digest")
    op.drop_index("ix_sessions_erased", table_name="sessions")
    op.drop_column("sessions", "erased_at")
    op.drop_index("ix_events_session_id", table_name="events")
    op.drop_column("events", "left_out")
    op.drop_column("events", "dataref")
