"""`hindstream sql` and `hindstream dashboard` answer from the run's database and change nothing in it."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import create_engine, text

from hindstream.cli.dashboard import dashboard
from hindstream.cli.sql import sql
from hindstream.errors import UserError

pytestmark = pytest.mark.stack


@pytest.fixture
def database(migrated_database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HINDSTREAM_DATABASE__URL", migrated_database_url)
    engine = create_engine(migrated_database_url)
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO runs (run, kind, policy, recipe_name, recipe, recipe_digest) "
                "VALUES ('live', 'live', 'policy', 'combine', '{}', 'x')"
            )
        )
    engine.dispose()
    return migrated_database_url


def test_a_question_is_answered_as_rows(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    sql("SELECT run, turns_seen, balance, NULL AS nothing FROM ledger", as_json=True)
    assert json.loads(capsys.readouterr().out) == {"run": "live", "turns_seen": 0, "balance": 0, "nothing": None}
    sql("SELECT run, NULL AS nothing FROM ledger")
    assert "live" in (shown := capsys.readouterr().out)
    assert "NULL" in shown


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("DELETE FROM runs", "read-only transaction"),
        ("COMMIT; DELETE FROM runs", "read-only transaction"),
        ("SELECT * FROM nowhere", 'relation "nowhere" does not exist'),
        ("SELEC 1", "syntax error"),
    ],
)
def test_a_query_that_the_database_refuses_is_one_clear_line(database: str, query: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        sql(query)
    engine = create_engine(database)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM runs")).scalar_one() == 1
    engine.dispose()


def test_the_dashboard_shows_a_run_and_an_unknown_one_as_empty(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dashboard(run="live", once=True)
    assert "0 seen = 0 trained + 0 ready + 0 pending + 0 dropped" in " ".join(capsys.readouterr().out.split())
    dashboard(run="nobody", once=True)
    assert "nobody" in capsys.readouterr().out
