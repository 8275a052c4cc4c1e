"""Pins, which keep a weight version's files whatever their age, and the copies of versions in object storage.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """both tables"""
    op.create_table(
        "weight_pins",
        sa.Column("policy", sa.Text(), nullable=False, comment="Policy."),
        sa.Column("version", sa.Integer(), nullable=False, comment="Version whose files stay."),
        sa.Column(
            "holder",
            sa.Text(),
            nullable=False,
            comment="Who needs it: user, or the name of a service or an experiment.",
        ),
        _created_at(),
        sa.ForeignKeyConstraint(
            ["policy", "version"],
            ["weight_versions.policy", "weight_versions.version"],
            name=op.f("fk_weight_pins_policy_version_weight_versions"),
        ),
        sa.PrimaryKeyConstraint("policy", "version", "holder", name=op.f("pk_weight_pins")),
        comment="Weight versions that retention must not delete, whatever their age. The last holder's unpin frees one.",
    )
    op.create_table(
        "weight_uploads",
        sa.Column("policy", sa.Text(), nullable=False, comment="Policy."),
        sa.Column("version", sa.Integer(), nullable=False, comment="Version."),
        sa.Column("url", sa.Text(), nullable=False, comment="Where to: the setting learner.upload_url."),
        sa.Column(
            "status",
            sa.Text(),
            nullable=False,
            comment="uploaded: read back and equal to the manifest; or failed.",
        ),
        sa.Column("attempts", sa.Integer(), nullable=False, comment="Tries until now."),
        sa.Column("detail", sa.Text(), nullable=True, comment="The last fault, in words."),
        sa.Column("bytes", sa.BigInteger(), nullable=False, comment="Size of its files."),
        sa.Column("seconds", sa.Double(), nullable=False, comment="Wall time of the last try."),
        sa.Column(
            "uploaded_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When it was whole there; NULL: not yet.",
        ),
        _created_at(),
        sa.CheckConstraint("status IN ('uploaded', 'failed')", name=op.f("ck_weight_uploads_status")),
        sa.CheckConstraint(
            "(uploaded_at IS NOT NULL) = (status = 'uploaded')", name=op.f("ck_weight_uploads_uploaded_when")
        ),
        sa.ForeignKeyConstraint(
            ["policy", "version"],
            ["weight_versions.policy", "weight_versions.version"],
            name=op.f("fk_weight_uploads_policy_version_weight_versions"),
        ),
        sa.PrimaryKeyConstraint("policy", "version", "url", name=op.f("pk_weight_uploads")),
        comment="Copies of weight versions in object storage. One without such a copy keeps its files here.",
    )


def downgrade() -> None:
    """drop both"""
    op.drop_table("weight_uploads")
    op.drop_table("weight_pins")


def _created_at() -> sa.Column[object]:
    return sa.Column(
        "created_at",
        sa.DateTime(timezone=True),
        server_default=sa.text("now()"),
        nullable=False,
        comment="When this row was inserted (database clock).",
    )
