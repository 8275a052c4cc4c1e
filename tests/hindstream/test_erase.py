"""`hindstream erase` on a real broker and database: nothing can be read again, whatever is killed, read or imported."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hindstream.cli.main import app
from hindstream.cli.topics import ensure_topics
from hindstream.erasing.archives import Erased, rewrite
from hindstream.export.reading import ArchiveReader
from processors.dead_letters import Delivery
from processors.recording import record
from processors.replay.selection import Selection
from processors.replay.service import open_replay, run_replay
from processors.replay.sources import TopicLog
from schemas.claim_check import DirectoryBlobStore
from schemas.digests import user_digest
from schemas.envelope import WireRecord, encode
from schemas.publish import AckedPublisher
from schemas.topics import AGENT_EVENTS
from tests.conftest import _database
from tests.processors.conversations import Recording, event
from tests.processors.test_erasing import CANARY, NEEDLES, conversation, fill_results, holds
from tests.processors.test_replay import config, recipe

pytestmark = pytest.mark.stack


class Deployment:
    """A home, a database, and sessions of this test's own on the shared log."""

    def __init__(self, broker: str, recording: Recording, home: Path, prefix: str) -> None:
        self.broker, self.recording, self.home = broker, recording, home
        self.gone, self.other = f"{prefix}-gone", f"{prefix}-other"
        self.blobs = DirectoryBlobStore(home / "blobs")
        self.places: list[Delivery] = []

    def put(self, *wired: WireRecord) -> None:
        """Onto the log, and recorded as a worker does it."""
        with AckedPublisher(self.broker, client_id="test") as publisher:
            positions = publisher.publish(AGENT_EVENTS, wired)
        new = [
            Delivery(at.topic, at.partition, at.offset, one.key, list(one.headers), one.value)
            for one, at in zip(wired, positions, strict=True)
        ]
        self.places += new
        self.deliver(new)

    def deliver(self, deliveries: Sequence[Delivery]) -> Any:
        with self.recording.engine.begin() as connection:
            return record(connection, deliveries, blobs=self.blobs)

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments), catch_exceptions=False)

    def erase(self, *more: str) -> dict[str, Any]:
        result = self.run("erase", "--session", self.gone, "--json", *more)
        assert result.exit_code == 0, result.output
        told: dict[str, Any] = json.loads(result.stdout)
        return told


@pytest.fixture
def deployment(
    broker: str, migrated_database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Deployment]:
    """Two sessions with words in every column, one of them with a claim check."""
    ensure_topics(broker, 8)
    for name, value in {
        "HOME": str(tmp_path),
        "DATABASE__URL": migrated_database_url,
        "KAFKA__BOOTSTRAP_SERVERS": broker,
        "GATEWAY__USER_SECRET": "pepper",
    }.items():
        monkeypatch.setenv(f"HINDSTREAM_{name}", value)
    made = Deployment(broker, Recording(migrated_database_url), tmp_path, tmp_path.name)
    long = {
        "messages": [{"role": "user", "content": CANARY * 200_000}],
        "user_digest": user_digest("u", secret="pepper"),
    }
    first, *others = conversation(made.gone)
    first = type(first)(**{name: long.get(name, getattr(first, name)) for name in first.__struct_fields__})
    made.put(*(encode(event(one), made.blobs) for one in [first, *others, *conversation(made.other, "stays")]))
    fill_results(made.recording, session=made.gone)
    yield made
    made.recording.engine.dispose()


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def test_looking_changes_nothing_and_says_what_would_go(deployment: Deployment) -> None:
    told = deployment.erase("--dry-run")
    (session,) = told["sessions"]
    assert session["erased"] is None
    assert session["rows"]["turns"] == 2
    assert len(session["datarefs"]) == 1
    assert sum(len(place["offsets"]) for place in session["places"]) == 4
    assert told["retention_ms"][AGENT_EVENTS] == -1
    assert told["weights"] == told["in_training"] == told["without_state"] == []
    assert holds(deployment.recording, *NEEDLES)
    shown = deployment.run("erase", "--session", deployment.gone, "--dry-run").stdout
    offsets = ", ".join(str(one.offset) for one in deployment.places if one.key == deployment.gone.encode())
    assert f"Kafka still holds 4 records at agent-events/{deployment.places[0].partition}, offsets {offsets}" in shown
    assert "for ever" in shown
    assert "No weight version had seen them." in shown


def test_the_weights_that_had_seen_it_are_shown_and_a_trainer_that_could_not_go_on_is_warned_of(
    deployment: Deployment,
) -> None:
    with deployment.recording.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO micro_batches (micro_batch_id, run, policy, seq, recipe_digest, digest, size, state) "
            "VALUES ('b', 'live', 'policy', 1, 'r', 'd', 1, 'consumed'), ('c', 'live', 'policy', 2, 'r', 'd', 1, "
            "'published')"
        )
        connection.exec_driver_sql(
            "INSERT INTO weight_versions (policy, version, parent_version, run, micro_batch_id, path, manifest, "
            "manifest_sha256) VALUES ('policy', 0, NULL, NULL, NULL, '/', '{}', 'm'), "
            "('policy', 1, 0, 'live', 'b', '/', '{}', 'm'), ('policy', 2, 1, 'live', NULL, '/', '{}', 'm')"
        )
        for turn, state, batch in (("1", "trained", "b"), ("2", "batched", "c")):
            connection.exec_driver_sql(
                "UPDATE samples SET state = %(state)s, micro_batch_id = %(batch)s, drop_reason = NULL "
                "WHERE turn_id = %(turn)s",
                {"state": state, "batch": batch, "turn": deployment.gone + turn},
            )
    states = deployment.home / "weights" / "policy" / "state"
    states.mkdir(parents=True)
    told = deployment.erase("--dry-run")
    assert [(one["version"], one["samples"]) for one in told["weights"]] == [(1, 1), (2, 0)]
    assert told["without_state"] == [{"policy": "policy", "state": 0, "version": 1}]
    assert told["in_training"] == [{"policy": "policy", "run": "live", "seq": 2, "samples": 1}]
    shown = deployment.run("erase", "--session", deployment.gone, "--yes").stdout
    assert "0, by descent" in shown
    assert "Micro-batch 2 of run live has 1 samples of them" in shown
    assert "WARNING policy policy: version 1 had seen them" in shown
    (states / "v000002.pt").touch()
    again = deployment.erase("--dry-run")
    assert again["without_state"] == []
    assert again["weights"] == told["weights"]


def test_who_does_not_confirm_erases_nothing(deployment: Deployment) -> None:
    result = CliRunner().invoke(app, ["erase", "--session", deployment.gone], input="n\n")
    assert result.exit_code == 1
    assert holds(deployment.recording, *NEEDLES)


def test_the_users_sessions_are_erased_and_nothing_of_them_comes_back(deployment: Deployment) -> None:
    result = deployment.run("erase", "--user", "u", "--yes")
    assert result.exit_code == 0, result.output
    assert f"erased session {deployment.gone}" in result.stdout
    recording = deployment.recording
    assert holds(recording, *NEEDLES) == []
    assert files(deployment.home / "blobs") == []
    assert recording.one("SELECT balance FROM ledger") == (0,)
    again = deployment.deliver(deployment.places)
    assert (again.recorded, again.unreadable, again.conflicts) == (0, 0, 0)
    assert holds(recording, *NEEDLES) == []
    assert recording.one("SELECT count(*) FROM dead_letters") == (0,)
    with pytest.raises(SystemExit) as stopped:
        app(["erase", "--user", "u", "--yes"])
    assert stopped.value.code == 2  # nobody knows any more which sessions were theirs


async def test_the_log_read_again_into_a_new_run_or_a_new_database_gives_no_row_of_it(
    deployment: Deployment, postgres: str, migrated_template: str
) -> None:
    deployment.erase("--yes")
    ours = Selection(sessions=[deployment.gone, deployment.other])
    log = TopicLog(deployment.broker)
    for url in itertools.chain((None,), _database(postgres, template=migrated_template)):
        recording = deployment.recording if url is None else Recording(url)
        asked = config(recording, "again", recipe(), selection=ours)
        open_replay(asked, log)
        assert (await asyncio.wait_for(run_replay(asked, log, asyncio.Event()), 120)).finished
        untold = "SELECT DISTINCT session_id FROM samples WHERE run = 'again' AND drop_reason IS DISTINCT FROM 'erased'"
        assert recording.rows(untold) == [(deployment.other,)]
        if url is None:
            assert recording.rows("SELECT 1 FROM samples WHERE run = 'again' AND drop_reason = 'erased'") == []
        assert holds(recording, *NEEDLES) == []
        if url is not None:
            recording.engine.dispose()


_KILLED = """
import os, sys
from hindstream.cli import erase
from hindstream.erasing.steps import Eraser
from hindstream.cli.main import app
step = sys.argv.pop(1)
made = Eraser.__init__
def init(self, **fields):
    made(self, **fields, after=lambda done: os._exit(9) if done == step else None)
Eraser.__init__ = init
app(sys.argv[1:])
"""


@pytest.mark.parametrize("step", ["published", "marked", "claim checks", "erased"])
def test_killed_after_any_step_it_is_finished_by_running_it_again(deployment: Deployment, step: str) -> None:
    command = [sys.executable, "-c", _KILLED, step, "erase", "--user", "u", "--yes"]
    killed = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=120)
    assert killed.returncode == 9, killed.stderr
    late = deployment.deliver(deployment.places)
    assert late.recorded == 0
    if step != "erased":
        assert holds(deployment.recording, *NEEDLES)
        assert deployment.run("erase", "--user", "u", "--yes").exit_code == 0
    assert set(deployment.erase("--yes")["sessions"][0]["erased"].values()) == {0}
    assert holds(deployment.recording, *NEEDLES) == []
    assert files(deployment.home / "blobs") == []
    assert deployment.recording.one("SELECT balance FROM ledger") == (0,)


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_archives_lose_it_and_imports_refuse_it(deployment: Deployment, format_: str) -> None:
    before, after = deployment.home / "before", deployment.home / "after"
    both = f"{deployment.gone},{deployment.other}"

    def export(to: Path) -> None:
        told = deployment.run("export", "--to", str(to), "--format", format_, "--sessions", both)
        assert told.exit_code == 0, told.output

    export(before)
    told = deployment.erase("--dry-run", "--archive", str(before))
    assert len(told["archives"][str(before)]) >= 4
    deployment.erase("--yes")
    export(after)
    assert sessions_in(after) == {deployment.other: 4, deployment.gone: 1}  # the event that says so
    assert sessions_in(before) == {deployment.other: 4, deployment.gone: 4}
    result = deployment.run("import", str(before / "events"))
    assert result.exit_code == 0, result.output
    assert f"session '{deployment.gone}' was erased on request" in result.output
    rest = deployment.erase("--yes", "--archive", str(before))["archives"][str(before)]
    assert sum(rest.values()) >= 8
    assert sessions_in(before) == {deployment.other: 4}
    assert list(ArchiveReader(before).faults()) == []
    for table in ArchiveReader(before).specs:
        if table in ArchiveReader(before).manifest["tables"]:
            assert CANARY not in repr(list(ArchiveReader(before).rows(table)))


@pytest.mark.parametrize("step", ["written", "renamed"])
def test_an_archive_whose_rewriting_is_killed_is_whole_and_the_next_try_ends_it(
    deployment: Deployment, step: str
) -> None:
    root = deployment.home / "archive"
    deployment.run("export", "--to", str(root), "--sessions", f"{deployment.gone},{deployment.other}")

    def die(done: str) -> None:
        if done == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rewrite(ArchiveReader(root), Erased(frozenset({deployment.gone})), die)
    assert sessions_in(root)[deployment.other] == 4
    rewrite(ArchiveReader(root), Erased(frozenset({deployment.gone})))
    assert sessions_in(root) == {deployment.other: 4}
    assert list(ArchiveReader(root).faults()) == []


def sessions_in(root: Path) -> dict[str, int]:
    """Events by session."""
    counts: dict[str, int] = {}
    for row in ArchiveReader(root).rows("events"):
        counts[row["partitionkey"]] = counts.get(row["partitionkey"], 0) + 1
    return counts


def test_what_cannot_be_done_is_said(deployment: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in {
        (): "Give --session or --user, one of the two",
        ("--session", "x", "--json"): "add --yes to erase, or --dry-run to look",
        ("--user", "nobody", "--yes"): "no turn names the user 'nobody'",
        ("--session", "x", "--archive", str(deployment.home)): "is no archive",
    }.items():
        with pytest.raises(SystemExit) as stopped:
            app(["erase", *arguments])
        assert stopped.value.code == 2
        assert words in capsys.readouterr().err
    unknown = deployment.run("erase", "--session", "x", "--dry-run")
    assert "there is no row of it; events of it will be left out from now on" in unknown.stdout
