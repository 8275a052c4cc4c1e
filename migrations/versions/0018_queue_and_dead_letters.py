"""Claims in the order in which work became due, questions that are being asked, and what became of a dead letter.

The index of claimable evaluations held the claimed ones too, so that each claim passed over the work of all other
workers, and postponed ones came first. Now open ones are found by the time from which they may be claimed, and claimed
ones by the end of their lease.

Revision ID: 0018
Revises: 0017
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

LETTER_CHECKS = {
    "state": "state IN ('open', 'replayed', 'dropped')",
    "settled_has_time": "(state = 'open') = (state_changed_at IS NULL)",
    "replayed_has_place": "(state = 'replayed') = (replayed_offset IS NOT NULL)",
    "dropped_has_reason": "state <> 'dropped' OR reason IS NOT NULL",
}


def upgrade() -> None:
    """New indexes for old, a table, and columns whose defaults say what holds for every letter until now."""
    op.drop_index("ix_evaluations_claimable", table_name="evaluations")
    op.create_index(
        "ix_evaluations_open",
        "evaluations",
        ["signal", "priority", sa.text("COALESCE(available_at, created_at)"), "turn_id"],
        postgresql_where=sa.text("state = 'open'"),
    )
    op.create_index(
        "ix_evaluations_claimed",
        "evaluations",
        ["signal", "lease_until"],
        postgresql_where=sa.text("state = 'claimed'"),
    )
    op.create_table(
        "open_questions",
        sa.Column(
            "answer_digest", sa.Text(), nullable=False, comment="Key that the answer will have in model_answers."
        ),
        sa.Column("asker", sa.Text(), nullable=False, comment="Worker that asks."),
        sa.Column(
            "lease_until",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="Until then others wait for its answer; afterwards anybody may ask.",
        ),
        sa.PrimaryKeyConstraint("answer_digest", name=op.f("pk_open_questions")),
        comment="What model servers are being asked now: workers with the same question wait, and one pays.",
    )
    for column in _letter_columns():
        op.add_column("dead_letters", column)
    op.create_foreign_key(
        op.f("fk_dead_letters_replay_of_dead_letters"),
        "dead_letters",
        "dead_letters",
        ["replay_of"],
        ["dead_letter_id"],
        ondelete="SET NULL",
    )
    for name, rule in LETTER_CHECKS.items():
        op.create_check_constraint(op.f(f"ck_dead_letters_{name}"), "dead_letters", rule)
    op.create_index(
        "ix_dead_letters_open",
        "dead_letters",
        ["error_class", "created_at"],
        postgresql_where=sa.text("state = 'open'"),
    )
    op.create_index(
        "ix_dead_letters_replay_of",
        "dead_letters",
        ["replay_of"],
        postgresql_where=sa.text("replay_of IS NOT NULL"),
    )


def downgrade() -> None:
    """As it was; what became of dead letters is forgotten."""
    op.drop_index("ix_dead_letters_replay_of", table_name="dead_letters")
    op.drop_index("ix_dead_letters_open", table_name="dead_letters")
    for column in reversed(_letter_columns()):
        op.drop_column("dead_letters", column.name)
    op.drop_table("open_questions")
    op.drop_index("ix_evaluations_claimed", table_name="evaluations")
    op.drop_index("ix_evaluations_open", table_name="evaluations")
    op.create_index(
        "ix_evaluations_claimable",
        "evaluations",
        ["signal", "priority", "available_at", "created_at"],
        postgresql_where=sa.text("state IN ('open', 'claimed')"),
    )


def _letter_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("state", sa.Text(), nullable=False, server_default="open", comment="open, replayed or dropped."),
        sa.Column(
            "state_changed_at", sa.DateTime(timezone=True), nullable=True, comment="When it was replayed or dropped."
        ),
        sa.Column(
            "state_changed_by", sa.Text(), nullable=True, comment="By whom: a person, or the worker's own policy."
        ),
        sa.Column("reason", sa.Text(), nullable=True, comment="Why it was dropped."),
        sa.Column(
            "replay_of",
            sa.BigInteger(),
            nullable=True,
            comment="The dead letter whose replay this record is; NULL: it is none.",
        ),
        sa.Column(
            "replays", sa.Integer(), nullable=False, server_default="0", comment="Replays before it that failed too."
        ),
        sa.Column("replayed_partition", sa.Integer(), nullable=True, comment="Partition of its replay."),
        sa.Column("replayed_offset", sa.BigInteger(), nullable=True, comment="Offset of its replay."),
    ]
