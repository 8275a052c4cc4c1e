"""A reason for turns whose text makes no tokens, and the correction that a sample is trained with.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

BEFORE = (
    "side_turn", "no_next_state", "aborted", "error", "no_tokens", "retokenised", "logprob_length_mismatch",
    "non_finite_logprob", "other_policy", "unknown_version", "reward_abstained", "reward_failed", "hint_failed",
    "no_signal", "stale", "non_finite_batch", "masked_batch", "erased", "uninformative", "off_policy", "logprob_gap",
)  # fmt: skip
ADDED = ("not_renderable",)


def upgrade() -> None:
    """Allow the new reason; a sample names its correction."""
    _allow((*BEFORE, *ADDED))
    comment = "The correction that it is trained with, by its feedback; NULL: none."
    op.add_column("samples", sa.Column("feedback_id", sa.Text(), nullable=True, comment=comment))


def downgrade() -> None:
    """Only the reasons from before: a sample that was dropped for the new one has no tokens in the old words."""
    op.drop_column("samples", "feedback_id")
    quoted = ", ".join(f"'{reason}'" for reason in ADDED)
    op.execute(f"UPDATE samples SET drop_reason = 'no_tokens' WHERE drop_reason IN ({quoted})")
    _allow(BEFORE)


def _allow(reasons: tuple[str, ...]) -> None:
    quoted = ", ".join(f"'{reason}'" for reason in reasons)
    op.drop_constraint(op.f("ck_samples_drop_reason"), "samples", type_="check")
    op.create_check_constraint(op.f("ck_samples_drop_reason"), "samples", f"drop_reason IN ({quoted})")
