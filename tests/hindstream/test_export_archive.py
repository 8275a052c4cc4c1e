"""An archive holds what the log and the database hold: read back it is equal, imported it makes the same facts."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from sqlalchemy import Engine, insert
from typer.testing import CliRunner

from hindstream.cli.main import app
from hindstream.errors import UserError
from hindstream.export.archive import Archive, Plan, export_archive
from hindstream.export.layout import Format
from hindstream.export.reading import ArchiveReader
from hindstream.replay.files import FileLog
from processors.dead_letters import Delivery
from processors.recording import record
from processors.replay.selection import Selection
from processors.replay.service import open_replay, run_replay
from processors.replay.sources import TopicLog
from producers.importers import IMPORTERS
from producers.importers.finding import find
from producers.importing import import_file
from schemas import tables
from schemas.claim_check import DirectoryBlobStore
from schemas.envelope import WireRecord, encode
from schemas.events import FeedbackGiven, SessionClosed
from schemas.publish import Position
from tests.conftest import _database
from tests.processors.conversations import RECORDED, Recording, dump, event, next_state, turn, wire
from tests.processors.test_replay import batches, config, conversations, recipe

FORMATS: list[Format] = ["jsonl", "parquet"]
NOW = datetime(2026, 12, 1, 12, 30, tzinfo=UTC)
FACTS = [name for name in RECORDED if name not in ("samples", "evaluations")]


Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]
"""Key, value, headers."""


def ours(one: WireRecord) -> Record:
    return one.key, one.value, list(one.headers)


def foreign(name: str, change: dict[str, Any], *more: tuple[str, bytes], indent: int | None = None) -> Record:
    """A turn as a producer of somebody else's writes it: whatever Python's json gives."""
    plain = wire(turn(name, session=name), name)
    value = json.dumps(json.loads(plain.value) | change, indent=indent)
    return plain.key, value.encode(), [*plain.headers, *more]


def awkward(blobs: DirectoryBlobStore) -> list[Record]:
    """Records of every kind that a log may hold."""
    first, long = wire(turn("t1")), [{"role": "user", "content": "long " * 300_000}]
    return [
        ours(first),
        ours(wire(next_state("n1", "t1", content="a\x00b \ud800"))),
        ours(encode(event(turn("t2", parent="t1", messages=long)), blobs)),
        ours(wire(FeedbackGiven(feedback_id="f1", session_id="s", turn_id="t1", score=-0.5, correction="better"))),
        ours(wire(SessionClosed(session_id="s", turns=2, next_states=1))),
        ours(first),  # a repeat
        ours(wire(turn("t1", messages=[]), "event-t1")),  # a conflict
        foreign("later", {"later": {"x": [1, 2]}}, ("ce_region", b"north"), ("trace", b"\xff\x00")),
        foreign("pretty", {}, indent=2),
        foreign("lone", {"policy": {"name": "\ud800 \U0001f600"}}),
        foreign("pair", {"policy": {"name": "\U0001f600"}}),
        foreign("nan", {"sampling": {"temperature": float("nan")}}),
        (b"poison", b"\xff\xfe", [("ce_id", b"x")]),
        (b"tombstone", None, []),
    ]


class Topic:
    """A topic of the test's own; `publish` is an import's."""

    def __init__(self, broker: str) -> None:
        self.broker, self.name = broker, f"export-{secrets.token_hex(4)}"
        self._admin = KafkaAdminClient(bootstrap_servers=broker)
        self._admin.create_topics([NewTopic(self.name, 3, 1, topic_configs={"max.message.bytes": "2097152"})])
        self._producer = KafkaProducer(bootstrap_servers=broker, max_request_size=2 << 20)

    def send(self, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]]) -> None:
        """One record, acknowledged."""
        self._producer.send(self.name, key=key, value=value, headers=headers).get(timeout=10)

    def publish(self, topic: str, records: Sequence[WireRecord]) -> list[Position]:
        for one in records:
            self._producer.send(self.name, key=one.key, value=one.value, headers=list(one.headers))
        self._producer.flush()
        return []

    @property
    def log(self) -> TopicLog:
        return TopicLog(self.broker, self.name)

    def deliveries(self) -> list[Delivery]:
        """Everything on it."""
        starts, ends = self.log.bounds(Selection())
        return [delivery for delivery, _ in self.log.read(starts, ends, threading.Event())]

    def close(self) -> None:
        self._producer.close()
        self._admin.delete_topics([self.name])
        self._admin.close()


@pytest.fixture
def topic(broker: str) -> Iterator[Topic]:
    made = Topic(broker)
    yield made
    made.close()


@pytest.fixture
def blobs(tmp_path: Path) -> DirectoryBlobStore:
    return DirectoryBlobStore(tmp_path / "blobs")


@pytest.fixture
def recording(migrated_database_url: str) -> Iterator[Recording]:
    made = Recording(migrated_database_url)
    yield made
    made.engine.dispose()


@pytest.fixture
def empty(postgres: str, migrated_template: str) -> Iterator[Recording]:
    """A second database."""
    for url in _database(postgres, template=migrated_template):
        made = Recording(url)
        yield made
        made.engine.dispose()


def recorded(engine: Engine, deliveries: Sequence[Delivery], blobs: DirectoryBlobStore) -> None:
    with engine.begin() as connection:
        record(connection, deliveries, blobs=blobs)


def facts(engine: Engine) -> dict[str, list[str]]:
    with engine.connect() as connection:
        return dump(connection, FACTS)


def exported(to: Path, format_: Format, blobs: DirectoryBlobStore, **more: Any) -> Archive:
    plan = {"log": None, "engine": None, **more}
    return export_archive(Plan(to=to, format=format_, blobs=blobs, **plan), NOW, lambda table, done, total: None)


@pytest.mark.stack
@pytest.mark.parametrize("format_", FORMATS)
def test_an_archive_imported_makes_the_same_facts(
    topic: Topic,
    recording: Recording,
    empty: Recording,
    blobs: DirectoryBlobStore,
    tmp_path: Path,
    shared_dir: Path,
    format_: Format,
) -> None:
    for found in find(
        [str(shared_dir / "data" / "tau_bench"), str(shared_dir / "data" / "swe_agent")], IMPORTERS
    ).files:
        import_file(found.importer, found.path, topic, blobs)
    for one in awkward(blobs):
        topic.send(*one)
    recorded(recording.engine, topic.deliveries(), blobs)
    assert {letter[0] for letter in recording.letters()} == {"IdConflict", "MalformedEvent"}

    archive = exported(tmp_path / "archive", format_, blobs, log=topic.log)
    assert archive.log is not None
    assert (archive.rows("events"), archive.rows("unreadable")) == (len(topic.deliveries()) - 2, 2)
    assert list(ArchiveReader(tmp_path / "archive").faults()) == []

    again = Topic(topic.broker)
    other_blobs = DirectoryBlobStore(tmp_path / "other-blobs")
    try:
        findings = find([str(tmp_path / "archive")], IMPORTERS)
        assert findings.skipped == []
        reports = [import_file(one.importer, one.path, again, other_blobs) for one in findings.files]
        assert sum(report.events for report in reports) == archive.rows("events")
        assert [report.refused for report in reports if report.refused] == []
        recorded(empty.engine, again.deliveries(), other_blobs)
        assert facts(empty.engine) == facts(recording.engine)
        assert {letter[0] for letter in empty.letters()} == {"IdConflict"}
        stamps = {dict(d.headers)["ce_id"]: dict(d.headers).get("ce_recordedtime") for d in again.deliveries()}
        originals = {dict(d.headers).get("ce_id"): dict(d.headers).get("ce_recordedtime") for d in topic.deliveries()}
        assert {one: originals[one] for one in stamps} == stamps, "when it was first recorded stays"
        second = exported(tmp_path / "second", format_, other_blobs, log=again.log)
        assert second.rows("events") == archive.rows("events")
    finally:
        again.close()


@pytest.mark.stack
@pytest.mark.parametrize("format_", FORMATS)
def test_each_record_is_kept_byte_for_byte(
    topic: Topic, blobs: DirectoryBlobStore, tmp_path: Path, format_: Format
) -> None:
    for one in awkward(blobs):
        topic.send(*one)
    exported(tmp_path / "archive", format_, blobs, log=topic.log)
    reader = ArchiveReader(tmp_path / "archive")
    both = [row for table in ("events", "unreadable") for row in reader.rows(table)]
    rows = {(row["logpartition"], row["logoffset"]): row for row in both}
    assert set(rows) == {(d.partition, d.offset) for d in topic.deliveries()}
    for delivery in topic.deliveries():
        row = rows[delivery.partition, delivery.offset]
        headers = dict(delivery.headers)
        if "value" in row:
            assert (row["value"], row["key"]) == (delivery.value, delivery.key)
            continue
        value = blobs.get(headers["ce_dataref"].decode()) if "ce_dataref" in headers else delivery.value
        assert value is not None
        if format_ == "parquet":
            assert (row["data_binary"] or row["data"].encode()) == value
            attributes = row | (row["attributes"] or {})
            assert ("header:trace" in attributes) == ("trace" in headers)
        else:
            attributes = row
            assert ("logheaders" in row) == ("trace" in headers)
            if "data" in row:
                assert row["data"] == msgspec.json.decode(value)
        for name, data in delivery.headers:
            if name.startswith("ce_") and name != "ce_dataref":
                assert attributes[name[3:]] == data.decode()


@pytest.mark.stack
def test_since_until_and_sessions_choose(topic: Topic, blobs: DirectoryBlobStore, tmp_path: Path) -> None:
    for number in range(6):
        one = wire(turn(f"t{number}", session=f"s{number % 2}"))
        topic.send(*ours(one))
    only = exported(tmp_path / "one", "jsonl", blobs, log=topic.log, sessions=frozenset({"s1"}))
    assert only.rows("events") == 3
    assert {row["partitionkey"] for row in ArchiveReader(tmp_path / "one").rows("events")} == {"s1"}
    later = datetime.now(UTC) + timedelta(minutes=1)
    assert exported(tmp_path / "none", "jsonl", blobs, log=topic.log, since=later).rows("events") == 0
    assert exported(tmp_path / "all", "jsonl", blobs, log=topic.log, until=later).rows("events") == 6


@pytest.mark.stack
@pytest.mark.parametrize("format_", FORMATS)
async def test_a_replay_of_the_archive_makes_the_micro_batches_of_a_replay_of_the_topic(
    topic: Topic, recording: Recording, blobs: DirectoryBlobStore, tmp_path: Path, format_: Format
) -> None:
    for one in conversations():
        topic.send(one.key, one.value, list(one.headers))
    await asyncio.to_thread(exported, tmp_path / "archive", format_, blobs, log=topic.log)
    files = FileLog(find([str(tmp_path / "archive")], IMPORTERS).files, blobs, lambda path, row: pytest.fail(str(row)))
    for run, log in (("topic", topic.log), ("archive", files)):
        replay = config(recording, run, recipe())
        open_replay(replay, log)
        assert (await asyncio.wait_for(run_replay(replay, log, asyncio.Event()), 60)).finished
    made = batches(recording, "topic")
    assert len(made) > 5
    assert batches(recording, "archive") == made


def derived(engine: Engine) -> None:
    """A row or two of every kind of column: NULL, NaN, bytes, JSON, times."""
    turn_key = {"run": "live", "turn_id": "t1"}
    rows: dict[str, dict[str, Any]] = {
        "votes": {
            **turn_key,
            "signal": "reward",
            "vote": 0,
            "annotator_kind": "LLM",
            "annotator": "m",
            "status": "invalid",
            "raw": 'quote " and \n line \u2028 é',
        },
        "rewards": {**turn_key, "status": "abstained", "votes_valid": 0, "votes_total": 3},
        "hints": {
            **turn_key,
            "status": "accepted",
            "text": "Say so.",
            "annotator_kind": "LLM",
            "votes_valid": 1,
            "votes_total": 1,
        },
        "teacher_scores": {
            **turn_key,
            "teacher": "m",
            "hinted_prompt_ids": bytes(range(256)),
            "logprobs": b"",
            "top_k": 4,
            "topk_ids": b"\x00\x01",
            "topk_logprobs": b"\xff",
            "mean_gain": float("nan"),
        },
        "model_answers": {
            "answer_digest": "d",
            "purpose": "reward",
            "model": "m",
            "answer": {"a": [1.5, None, "x"], "e": 1e-7},
        },
        "micro_batches": {
            "micro_batch_id": "b1",
            "run": "live",
            "policy": "policy",
            "seq": 1,
            "recipe_digest": "r",
            "digest": "d",
            "size": 1,
            "state": "published",
        },
        "weight_versions": {
            "policy": "policy",
            "version": 0,
            "path": "/w/0",
            "manifest": {"files": {}},
            "manifest_sha256": "s",
        },
        "training_steps": {
            "run": "live",
            "step": 1,
            "micro_batch_id": "b1",
            "policy": "policy",
            "skipped_reason": "masked",
            "metrics": {},
            "samples_trained": 0,
            "samples_dropped": 1,
            "tokens": 0,
            "seconds": float("inf"),
        },
    }
    with engine.begin() as connection:
        for name, row in rows.items():
            connection.execute(insert(tables.metadata.tables[name]).values(**row))


@pytest.mark.stack
@pytest.mark.parametrize("format_", FORMATS)
def test_derived_rows_read_back_equal(
    recording: Recording, blobs: DirectoryBlobStore, tmp_path: Path, format_: Format
) -> None:
    recording.record(turn("t1"), next_state("n1", "t1"), turn("t2", parent="t1"), turn("u1", session="u"))
    derived(recording.engine)
    archive = exported(tmp_path / "archive", format_, blobs, engine=recording.engine)
    reader = ArchiveReader(tmp_path / "archive")
    assert set(archive.parts) == set(reader.specs) >= {"runs", "samples", "evaluations", "votes", "weight_versions"}
    for name in archive.parts:
        columns = tables.metadata.tables[name].columns
        shown = ", ".join(f"{c.name}::text" if c.type.__visit_name__ == "JSONB" else c.name for c in columns)
        names = [c.name for c in columns]
        expected = [dict(zip(names, row, strict=True)) for row in recording.rows(f"SELECT {shown} FROM {name}")]
        assert sorted(map(repr, reader.rows(name))) == sorted(map(repr, expected)), name
    assert archive.rows("samples") == 3
    assert archive.rows("training_steps") == 1

    some = exported(
        tmp_path / "some",
        format_,
        blobs,
        engine=recording.engine,
        tables=frozenset({"samples", "rewards", "runs"}),
        sessions=frozenset({"u"}),
    )
    assert {name: some.rows(name) for name in some.parts} == {"samples": 1, "rewards": 0, "runs": 1}


def test_an_archive_is_whole_or_not_there_and_never_changed(tmp_path: Path, blobs: DirectoryBlobStore) -> None:
    class Broken(TopicLog):
        def bounds(self, selection: Selection) -> tuple[dict[int, int], dict[int, int]]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exported(tmp_path / "new", "jsonl", blobs, log=Broken("nowhere:1"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "mine.txt").touch()
    with pytest.raises(UserError, match="old is there already and not empty"):
        exported(tmp_path / "old", "jsonl", blobs)
    exported(tmp_path / "empty", "jsonl", blobs)
    assert ArchiveReader(tmp_path / "empty").manifest["tables"] == {}


@pytest.mark.stack
def test_a_changed_file_is_named(topic: Topic, blobs: DirectoryBlobStore, tmp_path: Path) -> None:
    one = wire(turn("t1"))
    topic.send(*ours(one))
    root = tmp_path / "archive"
    exported(root, "parquet", blobs, log=topic.log)
    assert (
        CliRunner().invoke(app, ["export", "verify", str(root)]).output == f"{root}: 1 files, each as it was written\n"
    )
    (part,) = root.rglob("*.parquet")
    part.write_bytes(part.read_bytes()[:-1] + b"X")
    (root / "stray").touch()
    found = CliRunner().invoke(app, ["export", "verify", str(root)])
    assert found.exit_code == 1
    name = part.relative_to(root)
    assert found.output == f"{name} was changed: its content has another SHA-256\nstray is no file of the archive\n"
    part.unlink()
    assert f"{name} is missing" in CliRunner().invoke(app, ["export", "verify", str(root)]).output


@pytest.mark.stack
def test_the_command_writes_both_halves_and_says_where_the_log_begins(
    topic: Topic, recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = wire(turn("t1"))
    topic.send(*ours(one))
    recording.record(turn("t1"))
    monkeypatch.setattr("hindstream.cli.export.TopicLog", lambda servers: topic.log)
    monkeypatch.setenv("HINDSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS", topic.broker)
    monkeypatch.setenv(
        "HINDSTREAM_DATABASE__URL",
        recording.engine.url.render_as_string(hide_password=False).replace("+psycopg", ""),
    )
    root = tmp_path / "archive"
    result = CliRunner().invoke(app, ["export", "--to", str(root)])
    assert result.exit_code == 0, result.output
    rows = {line.split()[0]: line.split()[1:3] for line in result.output.splitlines() if len(line.split()) == 4}
    assert (rows["events"], rows["runs"], rows["samples"], rows["votes"]) == (
        ["1", "1"],
        ["1", "1"],
        ["1", "1"],
        ["0", "0"],
    )
    assert "note: " not in result.output
    assert CliRunner().invoke(app, ["export", "verify", str(root)]).exit_code == 0

    partition = topic.deliveries()[0].partition
    admin = KafkaAdminClient(bootstrap_servers=topic.broker)
    admin.delete_records({TopicPartition(topic.name, partition): 1})
    admin.close()
    late = CliRunner().invoke(app, ["export", "--to", str(tmp_path / "late"), "--tables", "facts"])
    assert late.exit_code == 0, late.output
    assert f"partition {partition} from offset 1; what stood before is not in this archive" in late.output


def test_users_mistakes_are_one_line(tmp_path: Path) -> None:
    def output(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["export", *arguments])
        assert result.exit_code == 2, result.output
        return result.output

    assert "Give --to DIR" in output()
    assert "choose parquet or jsonl" in output("--to", str(tmp_path / "a"), "--format", "csv")
    assert "--tables: there is no turn; choose facts, derived, all, or of" in output(
        "--to", "x", "--tables", "turn,votes"
    )
    assert "is no archive" in output("verify", str(tmp_path))
