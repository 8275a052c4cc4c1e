"""An import publishes what the reader yields, acknowledged, and says what went in, what did not and what to do."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from typer.testing import CliRunner

from hindstream.cli.main import app as hindstream
from producers.importers import IMPORTERS
from producers.importing import CHUNK_RECORDS, ImportFailed, ImportReport, Progress, import_file, survey_file
from schemas.claim_check import DirectoryBlobStore
from schemas.envelope import WireRecord, decode
from schemas.events import NextStateObserved, SessionClosed, TurnRecorded
from schemas.publish import Position, PublishFailed
from schemas.topics import AGENT_EVENTS, topic_specs

TAU = Path(__file__).parents[3] / "shared/data/tau_bench/gpt-4o-airline.subset.json"
needs_file = pytest.mark.skipif(not TAU.exists(), reason=f"the shared sample data are not at {TAU}")

GOOD = {
    "reward": 1.0,
    "traj": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "bye"},
    ],
}
"""1 turn, 2 next states (a reply and a verdict), 1 session."""


class Log:
    """A broker's stand-in where the subject is what the import makes of its answers. Takes `room` records."""

    def __init__(self, room: int = 1_000_000) -> None:
        self.room = room
        self.chunks: list[list[WireRecord]] = []

    def publish(self, topic: str, records: Sequence[WireRecord]) -> list[Position]:
        if len(self.records) + len(records) > self.room:
            raise PublishFailed(f"{topic}: the broker did not acknowledge")
        self.chunks.append(list(records))
        return [Position(topic, 0, i) for i in range(len(records))]

    @property
    def records(self) -> list[WireRecord]:
        return [record for chunk in self.chunks for record in chunk]


@pytest.fixture
def blobs(tmp_path: Path) -> DirectoryBlobStore:
    return DirectoryBlobStore(tmp_path / "blobs")


def tau_file(path: Path, *entries: object) -> Path:
    path.write_text(json.dumps(entries, indent=1))
    return path


def numbered(n: int) -> dict[str, object]:
    return GOOD | {"trial": n}


def test_the_report_counts_what_is_on_the_log(tmp_path: Path, blobs: DirectoryBlobStore) -> None:
    path = tau_file(tmp_path / "log.json", GOOD, "no entry", numbered(2))
    log, progress = Log(), list[Progress]()
    report = import_file(IMPORTERS["tau-bench"], path, log, blobs, progress.append)
    assert report == ImportReport(
        file="log.json",
        format="tau-bench",
        events=8,
        sessions=2,
        turns=2,
        next_states={"user_reply": 2, "test_verdict": 2},
        verdicts=2,
        feedback=0,
        refused_rows=1,
        refused=report.refused,
    )
    assert [str(row) for row in report.refused] == ["log.json:19: entry 2 is a JSON string, not an object"]
    assert report == survey_file(IMPORTERS["tau-bench"], path)
    assert progress == [Progress(path.stat().st_size, 8, 1)]
    events = [decode(record.value, record.headers) for record in log.records]
    assert all(event.recorded_time for event in events)
    assert all(event.time is None for event in events)
    assert [record.key.decode() for record in log.records] == [event.data.session_id for event in events]


def test_chunks_are_acknowledged_one_by_one(tmp_path: Path, blobs: DirectoryBlobStore) -> None:
    path = tau_file(tmp_path / "log.json", *map(numbered, range(200)))
    log, progress = Log(), list[Progress]()
    assert import_file(IMPORTERS["tau-bench"], path, log, blobs, progress.append).events == 800
    assert [len(chunk) for chunk in log.chunks] == [CHUNK_RECORDS, CHUNK_RECORDS, CHUNK_RECORDS, 800 - 3 * 256]
    assert [step.events for step in progress] == [256, 512, 768, 800]


def test_a_value_over_one_mebibyte_goes_by_claim_check(tmp_path: Path, blobs: DirectoryBlobStore) -> None:
    long = {"role": "user", "content": "x" * (1 << 20)}
    path = tau_file(tmp_path / "log.json", GOOD | {"traj": [long, *GOOD["traj"][1:]]})  # type: ignore[index]
    log = Log()
    import_file(IMPORTERS["tau-bench"], path, log, blobs)
    assert max(len(record.value) for record in log.records) < 1 << 20
    turn = decode(log.records[0].value, log.records[0].headers, blobs).data
    assert isinstance(turn, TurnRecorded)
    assert turn.messages == [long]


def test_a_broker_that_goes_away_is_told_with_how_far_it_came(tmp_path: Path, blobs: DirectoryBlobStore) -> None:
    path = tau_file(tmp_path / "log.json", *map(numbered, range(200)))
    log = Log(room=600)
    with pytest.raises(ImportFailed, match=r"log.json: 512 events are on the log, then: .* run the import again"):
        import_file(IMPORTERS["tau-bench"], path, log, blobs)
    assert len(log.records) == 512


def test_dry_run_counts_lists_and_needs_no_broker(tmp_path: Path) -> None:
    path = tau_file(tmp_path / "log.json", GOOD, "no entry")
    result = CliRunner().invoke(hindstream, ["import", "--dry-run", str(path)])
    assert result.exit_code == 0, result.output
    assert "1 user_reply, 1 test_verdict" in result.output
    assert "refused log.json:19: entry 2 is a JSON string" in result.output
    assert "would go in" in result.output


def test_exit_code_is_1_only_where_nothing_went_in(tmp_path: Path) -> None:
    good, bad = tau_file(tmp_path / "good.json", GOOD), tau_file(tmp_path / "bad.json", {"traj": []})
    assert CliRunner().invoke(hindstream, ["import", "--dry-run", str(bad), str(good)]).exit_code == 0
    nothing = CliRunner().invoke(hindstream, ["import", "--dry-run", str(bad)])
    assert nothing.exit_code == 1
    assert "nothing went in" in nothing.output


def test_users_mistakes_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = CliRunner().invoke(hindstream, ["import", "--dry-run", str(tmp_path / "nowhere.json")])
    assert missing.exit_code == 2
    assert "nowhere.json: cannot be opened (No such file or directory)" in missing.output
    monkeypatch.setenv("HINDSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS", raising=False)
    no_broker = CliRunner().invoke(hindstream, ["import", str(tau_file(tmp_path / "log.json", GOOD))])
    assert no_broker.exit_code == 2
    assert "no broker: none runs here" in no_broker.output


@pytest.fixture
def broker_with_topic(broker: str) -> Iterator[str]:
    """The shared broker with `agent-events`, which is left as it was found: not there, if it was not."""
    spec = next(spec for spec in topic_specs() if spec.name == AGENT_EVENTS)
    admin = KafkaAdminClient(bootstrap_servers=broker)
    mine = spec.name not in admin.list_topics()
    if mine:
        admin.create_topics([NewTopic(spec.name, spec.partitions, 1)])
    yield broker
    if mine:
        admin.delete_topics([spec.name])
    admin.close()


@pytest.mark.stack
def test_a_broker_without_the_topic_is_told_at_once(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hindstream.cli.imports.AGENT_EVENTS", "no-such-topic")
    monkeypatch.setenv("HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS", broker)
    result = CliRunner().invoke(hindstream, ["import", str(tau_file(tmp_path / "log.json", GOOD))])
    assert result.exit_code == 2
    assert "has no topic no-such-topic; run `hindstream topics create`" in result.output


@pytest.mark.stack
@needs_file
def test_the_shared_file_on_a_real_broker(
    broker_with_topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the command line, then the whole topic read back: what the file holds, once for each import."""
    broker = broker_with_topic
    before = topic_records(broker)
    monkeypatch.setenv("HINDSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS", broker)
    arguments = ["import", str(TAU)]
    first, again = (CliRunner().invoke(hindstream, arguments) for _ in range(2))
    assert (first.exit_code, again.exit_code) == (0, 0), first.output
    assert "97" in first.output
    assert "53 tool_result, 44 user_reply, 7 test_verdict" in first.output
    fresh = [record for record in topic_records(broker) if record not in before]
    events = [decode(value, headers) for _, _, value, headers in fresh]
    mine = [event for event in events if event.source == IMPORTERS["tau-bench"].SOURCE]
    assert Counter(type(event.data) for event in mine) == {
        TurnRecorded: 2 * 97,
        NextStateObserved: 2 * 104,
        SessionClosed: 2 * 7,
    }
    assert len({event.id for event in mine}) == 97 + 104 + 7
    assert len({(event.id, event.content_digest()) for event in mine}) == 97 + 104 + 7
    partitions: dict[str, set[int]] = {}
    for (partition, _, _, _), event in zip(fresh, events, strict=True):
        partitions.setdefault(event.key, set()).add(partition)
    assert all(len(homes) == 1 for homes in partitions.values())


def test_an_address_where_no_broker_answers_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hindstream.cli.imports.BROKER_ANSWERS_S", 0.5)
    monkeypatch.setenv("HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    result = CliRunner().invoke(hindstream, ["import", str(tau_file(tmp_path / "log.json", GOOD))])
    assert result.exit_code == 2
    assert "no Kafka broker answers at 127.0.0.1:1" in result.output


Record = tuple[int, int, bytes, list[tuple[str, bytes]]]


def topic_records(bootstrap_servers: str) -> list[Record]:
    """Everything on `agent-events`."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers, enable_auto_commit=False)
    try:
        homes = [TopicPartition(AGENT_EVENTS, p) for p in sorted(consumer.partitions_for_topic(AGENT_EVENTS) or ())]
        consumer.assign(homes)
        ends = consumer.end_offsets(homes)
        consumer.seek_to_beginning(*homes)
        records: list[Record] = []
        while any(consumer.position(home) < ends[home] for home in homes):
            for batch in consumer.poll(timeout_ms=500).values():
                records += [(r.partition, r.offset, r.value, list(r.headers)) for r in batch]
        return records
    finally:
        consumer.close()
