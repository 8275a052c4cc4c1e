"""Alembic's entry: one connection, one transaction, one advisory lock so that two upgrades do not race."""

from __future__ import annotations

from alembic import context
from sqlalchemy import create_engine, pool, text

from schemas.tables import metadata

_LOCK = 7_463_820_115
"""Any fixed number: all upgrades of Hindstream take the same advisory lock."""


def run() -> None:
    """Run the migrations on the database that `migrations.alembic_config` names."""
    engine = create_engine(context.config.attributes["url"], poolclass=pool.NullPool)
    with engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        context.configure(connection=connection, target_metadata=metadata, compare_type=True)
        context.run_migrations()
    engine.dispose()


run()
