"""Access: who may use the gateway. Only hashes of keys are kept."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, ForeignKey, LargeBinary, Table, Text

from schemas.tables.base import created_at, metadata, timestamp

tenants = Table(
    "tenants",
    metadata,
    Column("tenant", Text, primary_key=True, comment="Name: small letters, digits, '-', '_' and '.'."),
    Column(
        "recorded",
        Boolean,
        nullable=False,
        server_default="true",
        comment="Whether its requests are recorded; false: answered, and nothing of them is kept.",
    ),
    created_at(),
    comment="Who uses the gateway. Sessions of two tenants never meet.",
)

gateway_keys = Table(
    "gateway_keys",
    metadata,
    Column("key_id", Text, primary_key=True, comment="What lists call it; says nothing about the key."),
    Column("tenant", Text, ForeignKey("tenants.tenant"), nullable=False, comment="Whose it is."),
    Column("name", Text, comment="What it is for, as its maker said."),
    Column("digest", LargeBinary, nullable=False, unique=True, comment="SHA-256 of the key, which is kept nowhere."),
    timestamp("expires_at", "From when on it is refused; NULL: never."),
    timestamp("revoked_at", "Since when it is refused; NULL: it is not revoked."),
    created_at(),
    comment="Bearer keys of the gateway.",
)
