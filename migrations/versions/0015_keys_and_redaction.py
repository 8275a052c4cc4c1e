"""Tenants and the hashes of their keys; which turns are whose, and which were redacted.

Revision ID: 0015
Revises: 0012
"""

from __future__ import annotations

import re

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0012"
branch_labels = None
depends_on = None

REDACTED = "A redaction rule replaced text before the event left its writer."
REASON = "redacted"


def upgrade() -> None:
    """Create both tables, add the columns, allow the new reason."""
    op.create_table(
        "tenants",
        sa.Column("tenant", sa.Text(), nullable=False, comment="Name: small letters, digits, '-', '_' and '.'."),
        sa.Column(
            "recorded",
            sa.Boolean(),
            server_default="true",
            nullable=False,
            comment="Whether its requests are recorded; false: answered, and nothing of them is kept.",
        ),
        _created_at(),
        sa.PrimaryKeyConstraint("tenant", name=op.f("pk_tenants")),
        comment="Who uses the gateway. Sessions of two tenants never meet.",
    )
    op.create_table(
        "gateway_keys",
        sa.Column("key_id", sa.Text(), nullable=False, comment="What lists call it; says nothing about the key."),
        sa.Column("tenant", sa.Text(), nullable=False, comment="Whose it is."),
        sa.Column("name", sa.Text(), nullable=True, comment="What it is for, as its maker said."),
        sa.Column("digest", sa.LargeBinary(), nullable=False, comment="SHA-256 of the key, which is kept nowhere."),
        sa.Column(
            "expires_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="From when on it is refused; NULL: never.",
        ),
        sa.Column(
            "revoked_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="Since when it is refused; NULL: it is not revoked.",
        ),
        _created_at(),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.tenant"], name=op.f("fk_gateway_keys_tenant_tenants")),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_gateway_keys")),
        sa.UniqueConstraint("digest", name=op.f("uq_gateway_keys_digest")),
        comment="Bearer keys of the gateway.",
    )
    whose = "Whose key asked; NULL where no key was needed."
    op.add_column("turns", sa.Column("tenant", sa.Text(), nullable=True, comment=whose))
    for table in ("turns", "next_states", "feedback"):
        op.add_column(
            table, sa.Column("redacted", sa.Boolean(), server_default="false", nullable=False, comment=REDACTED)
        )
    _allow([*_allowed(), REASON])


def downgrade() -> None:
    """Without them; a sample that was dropped for the reason has no tokens in the old words."""
    op.execute(f"UPDATE samples SET drop_reason = 'no_tokens' WHERE drop_reason = '{REASON}'")
    _allow([reason for reason in _allowed() if reason != REASON])
    for table in ("turns", "next_states", "feedback"):
        op.drop_column(table, "redacted")
    op.drop_column("turns", "tenant")
    op.drop_table("gateway_keys")
    op.drop_table("tenants")


def _created_at() -> sa.Column[object]:
    return sa.Column(
        "created_at",
        sa.DateTime(timezone=True),
        server_default=sa.text("now()"),
        nullable=False,
        comment="When this row was inserted (database clock).",
    )


def _allowed() -> list[str]:
    """The reasons that the database allows now, whichever migrations added them."""
    found = op.get_bind().scalar(
        sa.text(
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE conname = 'ck_samples_drop_reason' AND conrelid = 'samples'::regclass"
        )
    )
    return re.findall(r"'([a-z_]+)'", str(found))


def _allow(reasons: list[str]) -> None:
    quoted = ", ".join(f"'{reason}'" for reason in reasons)
    op.drop_constraint(op.f("ck_samples_drop_reason"), "samples", type_="check")
    op.create_check_constraint(op.f("ck_samples_drop_reason"), "samples", f"drop_reason IN ({quoted})")
