"""A run with a tiny policy on a real database and broker for each test that asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hindstream.cli.topics import ensure_topics
from tests.learner.learning import Learning, tiny_model
from tests.learner.ranks_of import Ranks


@pytest.fixture(scope="session")
def topics(broker: str) -> str:
    """The broker's address, with every topic."""
    ensure_topics(broker, 8)
    return broker


@pytest.fixture
def start_learning(migrated_database_url: str, topics: str, tmp_path: Path) -> Iterator[Callable[..., Learning]]:
    """`start_learning(recipe=...)` gives a run and a tiny base model."""
    started: list[Learning] = []

    def start(**more: Any) -> Learning:
        tiny_model(tmp_path / "base")
        started.append(Learning(migrated_database_url, topics, tmp_path, **more))
        return started[-1]

    yield start
    for one in started:
        one.engine.dispose()


@pytest.fixture
def learning(start_learning: Callable[..., Learning]) -> Learning:
    """A run of recipe `combine` with staleness 1 allowed."""
    return start_learning()


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Where jobs for several ranks run."""
    made = Ranks(tmp_path_factory.mktemp("ranks"))
    yield made
    made.close()
