"""The teacher's scores of the policy's own likeliest tokens, which a surrogate over them needs.

Revision ID: 0017
Revises: 0015
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0015"
branch_labels = None
depends_on = None

_COLUMNS = (
    ("student_k", sa.Integer(), "The policy's own likeliest tokens a place; NULL where none were asked for."),
    ("student_ids", sa.LargeBinary(), "int32 [response_tokens, student_k], row-major, by the policy's own rank."),
    (
        "student_logprobs",
        sa.LargeBinary(),
        "float32 [response_tokens, student_k]: the teacher's log-probs of student_ids; NaN: not known.",
    ),
    ("student_version", sa.Integer(), "Weight version of the policy that named them; NULL: it did not say."),
)


def upgrade() -> None:
    """Add the columns; scores that are there already have none."""
    for name, kind, comment in _COLUMNS:
        op.add_column("teacher_scores", sa.Column(name, kind, nullable=True, comment=comment))


def downgrade() -> None:
    """Drop them."""
    for name, _, _ in reversed(_COLUMNS):
        op.drop_column("teacher_scores", name)
