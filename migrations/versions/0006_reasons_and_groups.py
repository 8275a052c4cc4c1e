"""Reasons why a sample says nothing to its recipe, and the index by which a prompt's candidates are found.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

BEFORE = (
    "side_turn", "no_next_state", "aborted", "error", "no_tokens", "retokenised", "logprob_length_mismatch",
    "non_finite_logprob", "other_policy", "unknown_version", "reward_abstained", "reward_failed", "hint_failed",
    "no_signal", "stale", "non_finite_batch", "masked_batch", "erased",
)  # fmt: skip
ADDED = ("uninformative", "off_policy", "logprob_gap")


def upgrade() -> None:
    """Allow the new reasons; index group_id."""
    _allow((*BEFORE, *ADDED))
    op.create_index("ix_turns_group_id", "turns", ["group_id"], postgresql_where=sa.text("group_id IS NOT NULL"))


def downgrade() -> None:
    """Only the reasons from before: a sample that was dropped for a new one has no signal in the old words."""
    op.drop_index("ix_turns_group_id", "turns")
    quoted = ", ".join(f"'{reason}'" for reason in ADDED)
    op.execute(f"UPDATE samples SET drop_reason = 'no_signal' WHERE drop_reason IN ({quoted})")
    _allow(BEFORE)


def _allow(reasons: tuple[str, ...]) -> None:
    quoted = ", ".join(f"'{reason}'" for reason in reasons)
    op.drop_constraint(op.f("ck_samples_drop_reason"), "samples", type_="check")
    op.create_check_constraint(op.f("ck_samples_drop_reason"), "samples", f"drop_reason IN ({quoted})")
