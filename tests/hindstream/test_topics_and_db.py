"""`topics create` and `db upgrade`: safe to call again, and clear about what they cannot do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient
from sqlalchemy import create_engine, inspect

from hindstream.cli.db import upgrade_database
from hindstream.cli.topics import ensure_topics
from hindstream.errors import UserError
from schemas.topics import topic_specs

pytestmark = pytest.mark.stack


def test_topics_are_made_once_with_the_partitions_of_the_contract(broker: str) -> None:
    ensure_topics(broker, 8)
    assert ensure_topics(broker, 8) == set()
    admin = KafkaAdminClient(bootstrap_servers=broker)
    try:
        found = {topic["name"]: len(topic["partitions"]) for topic in admin.describe_topics()}
    finally:
        admin.close()
    assert {spec.name: spec.partitions for spec in topic_specs(8)}.items() <= found.items()


def test_more_partitions_than_there_are_is_told_and_nothing_is_changed(broker: str) -> None:
    ensure_topics(broker, 8)
    with pytest.raises(UserError, match=r"topic agent-events at .* has 8 partitions, not 9.*KAFKA__PARTITIONS=8"):
        ensure_topics(broker, 9)
    assert ensure_topics(broker, 8) == set()
    assert ensure_topics(broker, 4) == set(), "fewer are enough"


def test_a_broker_that_is_away_is_one_line(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "hindstream", "topics", "create"],
        env={**os.environ, "HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1", "HINDSTREAM_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert told.returncode == 2
    assert "could not be made at 127.0.0.1:1" in told.stderr
    assert "Traceback" not in told.stderr


def test_the_database_is_upgraded_and_again(database_url: str) -> None:
    url = database_url.replace("postgresql://", "postgresql+psycopg://")
    upgrade_database(url)
    upgrade_database(url)
    engine = create_engine(url)
    assert {"turns", "samples", "outbox"} <= set(inspect(engine).get_table_names())
    assert "ledger" in inspect(engine).get_view_names()
    engine.dispose()


def test_a_database_that_is_away_is_one_line() -> None:
    with pytest.raises(UserError, match=r"could not be upgraded: .*127\.0\.0\.1.*hindstream status"):
        upgrade_database("postgresql+psycopg://me@127.0.0.1:1/none")
