"""Alembic migrations: tables, views, roles and comments. `upgrade` brings a database to the newest revision."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config


def alembic_config(url: str) -> Config:
    """Alembic's settings for the database at `url` (SQLAlchemy form, `postgresql+psycopg://...`)."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["url"] = url
    return config


def upgrade(url: str, revision: str = "head") -> None:
    """Bring the database at `url` to `revision`. Safe to call again, and from several processes at once."""
    command.upgrade(alembic_config(url), revision)
