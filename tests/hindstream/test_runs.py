"""`hindstream runs`: what is shown of each run, and what deleting one takes away and leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import text

from hindstream.cli.runs import delete, diff, list_, show
from hindstream.errors import UserError
from learner.checkpoints import policy_dir
from processors.deleting import DERIVED
from processors.replay.service import open_replay
from processors.runs import RunMismatch
from tests.processors.conversations import Recording
from tests.processors.test_replay import ListLog, config, conversations, events_of, recipe, replay

pytestmark = pytest.mark.stack


@pytest.fixture
def recording(migrated_database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recording:
    monkeypatch.setenv("HINDSTREAM_DATABASE__URL", migrated_database_url)
    monkeypatch.setenv("HINDSTREAM_HOME", str(tmp_path))
    return Recording(migrated_database_url)


def counts(recording: Recording, run: str) -> dict[str, int]:
    tables = [*DERIVED, "votes"]
    return {
        table: recording.one(f"SELECT count(*) FROM {table} WHERE run = :run", run=run)[0]
        for table in sorted(set(tables))
    }


async def test_runs_are_listed_shown_and_compared(recording: Recording, capsys: pytest.CaptureFixture[str]) -> None:
    log = ListLog(conversations(turns=10, sessions=2))
    await replay(config(recording, "again", recipe()), log)
    list_(as_json=True)
    rows = {row["run"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert rows["live"]["state"] == "takes turns"
    assert rows["again"] | {"begun": ""} == {
        "run": "again",
        "kind": "replay",
        "policy": "again",
        "recipe": "binary-rl",
        "begun": "",
        "state": "done",
        "turns": 10,
        "trained": 0,
        "ready": 8,
        "pending": 0,
        "dropped": 2,
        "balance": 0,
    }
    list_()
    assert "again" in capsys.readouterr().out
    show("again", as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert shown["drops"] == {"reward_abstained": 2}
    assert shown["replay"]["ends"] == {"0": 22}
    assert shown["recipe"]["batch"]["size"] == 4
    show("again")
    assert 'pattern = "thanks"' in capsys.readouterr().out
    await replay(config(recording, "other", recipe(batch={"size": 5})), log)
    diff("again", "other")
    printed = capsys.readouterr().out
    assert "batch.size" in printed
    assert "policy" in printed
    assert "loss" not in printed
    with pytest.raises(UserError, match=r"no run 'nothing'.*runs list"):
        show("nothing")


async def test_deleting_a_run_takes_what_it_derived_and_nothing_else(
    recording: Recording, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = ListLog(conversations(turns=10, sessions=2))
    recording.record(*(event.data for event in events_of(log.deliveries)))
    await replay(config(recording, "kept", recipe()), log)
    await replay(config(recording, "gone", recipe()), log)
    weights = policy_dir(tmp_path / "weights", "gone")
    weights.mkdir(parents=True)
    (weights / "file").write_text("x")
    before = counts(recording, "kept")
    facts = recording.one("SELECT (SELECT count(*) FROM turns), (SELECT count(*) FROM events)")
    delete("gone", yes=True)
    assert "samples" in capsys.readouterr().out
    assert set(counts(recording, "gone").values()) == {0}
    assert not weights.exists()
    assert counts(recording, "kept") == before
    assert recording.one("SELECT (SELECT count(*) FROM turns), (SELECT count(*) FROM events)") == facts
    assert recording.one("SELECT balance, turns_seen FROM ledger WHERE run = 'live'") == (0, 10)
    with pytest.raises(RunMismatch, match=r"was deleted at .* choose another name"):
        open_replay(config(recording, "gone", recipe()), log)
    with pytest.raises(UserError, match="no run 'gone'"):
        delete("gone", yes=True)


@pytest.mark.parametrize("use", ["served", "pinned", "parent"])
async def test_weights_in_use_keep_their_run(recording: Recording, use: str) -> None:
    await replay(config(recording, "r", recipe()), ListLog(conversations(turns=4, sessions=1)))
    with recording.engine.begin() as connection:
        for run, version in (("r", 1), ("another", 2)) if use == "parent" else (("r", 1),):
            connection.execute(
                text(
                    "INSERT INTO runs (run, kind, policy, recipe_name, recipe, recipe_digest) "
                    "VALUES (:run, 'replay', 'r', 'x', '{}', 'x') ON CONFLICT DO NOTHING"
                ),
                {"run": run},
            )
            connection.execute(
                text(
                    "INSERT INTO weight_versions "
                    "(policy, version, parent_version, run, path, manifest, manifest_sha256) "
                    "VALUES ('r', :version, :version - 1, :run, '/', '{}', 'x')"
                ),
                {"run": run, "version": version},
            )
        if use == "served":
            connection.execute(
                text(
                    "INSERT INTO weight_loads (server, policy, version, attempt, status, seconds) "
                    "VALUES ('http://s', 'r', 1, 1, 'serving', 0)"
                )
            )
        if use == "pinned":
            connection.execute(text("INSERT INTO weight_pins (policy, version, holder) VALUES ('r', 1, 'user')"))
    words = {"served": "is served by http://s", "pinned": "is pinned", "parent": "parent of version 2 of run another"}
    with pytest.raises(UserError, match=words[use]):
        delete("r", yes=True)
    assert counts(recording, "r")["samples"] == 4


def test_a_live_run_that_takes_turns_is_not_deleted(recording: Recording) -> None:
    with pytest.raises(UserError, match="'live' is live and takes turns"):
        delete("live", yes=True)
