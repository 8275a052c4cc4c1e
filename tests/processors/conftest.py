"""A migrated database with a live run for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.processors.conversations import Recording


@pytest.fixture
def recording(migrated_database_url: str) -> Iterator[Recording]:
    """An empty database with the run "live" of recipe `combine`."""
    made = Recording(migrated_database_url)
    yield made
    made.engine.dispose()
