"""Dead letters are replayed byte for byte and once, dropped with a reason, and retried where the policy says so."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import KafkaAdminClient

from hindstream.cli.main import app
from processors.dead_letters import REPLAY_HEADER, DeadLetter, Delivery, write
from processors.health import Health
from processors.letter_retries import LettersConfig, run_letters
from processors.letters import LetterPolicy, Settled, drop, purge_settled, replay
from processors.recording import record
from schemas.envelope import WireRecord
from schemas.publish import AckedPublisher, Position, PublishFailed
from tests.processors.conversations import Recording, turn, wire
from tests.processors.evaluating import until

pytestmark = pytest.mark.stack

POLICY = LetterPolicy()


@pytest.fixture
def topic(broker: str) -> Iterator[str]:
    """One of one partition, so that order can be told."""
    name = f"letters-{secrets.token_hex(4)}"
    admin = KafkaAdminClient(bootstrap_servers=broker)
    admin.create_topics({name: {"num_partitions": 1}}, wait_for_metadata=True)
    yield name
    admin.delete_topics([name])
    admin.close()


def keep(
    recording: Recording, topic: str, *records: WireRecord, error: str = "MalformedEvent", start: int = 0
) -> list[int]:
    """Dead letters of `records`, whatever is wrong with them; their numbers."""
    letters = [
        DeadLetter(Delivery(topic, 0, start + place, one.key, one.headers, one.value), error, "it was wrong")
        for place, one in enumerate(records)
    ]
    with recording.engine.begin() as connection:
        write(connection, letters)
    found = recording.rows("SELECT dead_letter_id FROM dead_letters WHERE record_offset >= :s ORDER BY 1", s=start)
    return [number for (number,) in found]


def read(broker: str, topic: str) -> list[Any]:
    """Everything on the topic."""
    consumer = KafkaConsumer(bootstrap_servers=broker, enable_auto_commit=False, consumer_timeout_ms=60_000)
    try:
        part = TopicPartition(topic, 0)
        consumer.assign([part])
        consumer.seek_to_beginning(part)
        end = consumer.end_offsets([part])[part]
        return [next(consumer) for _ in range(end)]
    finally:
        consumer.close()


def replayed(recording: Recording, broker: str, ids: Sequence[int], policy: LetterPolicy = POLICY) -> list[Settled]:
    with AckedPublisher(broker, client_id="test") as publisher, recording.engine.begin() as connection:
        return replay(connection, publisher, ids, by="tester", policy=policy)


def record_all(recording: Recording, broker: str, topic: str) -> None:
    """What an agent does with the topic."""
    with recording.engine.begin() as connection:
        for got in read(broker, topic):
            record(connection, [Delivery(topic, 0, got.offset, got.key, list(got.headers), got.value)])


def states(recording: Recording) -> list[tuple[Any, ...]]:
    return recording.rows("SELECT dead_letter_id, state FROM dead_letters ORDER BY 1")


def test_a_replay_is_the_record_byte_for_byte_and_in_order(recording: Recording, broker: str, topic: str) -> None:
    records = [wire(turn(f"t{i}", ordinal=i)) for i in range(3)]
    odd = WireRecord(key=b"\xff\x00", value=b"\x00\xfe{", headers=[("ce_id", b"\xff"), ("ce_id", b"")])
    ids = keep(recording, topic, *records, odd)
    settled = replayed(recording, broker, list(reversed(ids)))
    assert [(one.dead_letter_id, one.done) for one in settled] == [(number, True) for number in ids]
    got = read(broker, topic)
    for sent, kept, number in zip(got, [*records, odd], ids, strict=True):
        assert (sent.key, sent.value) == (kept.key, kept.value)
        assert list(sent.headers) == [*kept.headers, (REPLAY_HEADER, str(number).encode())]
    assert recording.rows(
        "SELECT state, state_changed_by, replayed_partition, replayed_offset, state_changed_at IS NOT NULL "
        "FROM dead_letters ORDER BY dead_letter_id"
    ) == [("replayed", "tester", 0, offset, True) for offset in range(4)]


def test_a_second_replay_changes_nothing(recording: Recording, broker: str, topic: str) -> None:
    ids = keep(recording, topic, wire(turn("a")))
    replayed(recording, broker, ids)
    (again,) = replayed(recording, broker, ids)
    assert not again.done
    assert f"to {topic}/0 at offset 0" in again.words
    assert len(read(broker, topic)) == 1
    record_all(recording, broker, topic)
    assert recording.one("SELECT count(*) FROM turns") == (1,)


def test_a_crash_after_publishing_makes_no_second_row(recording: Recording, broker: str, topic: str) -> None:
    ids = keep(recording, topic, wire(turn("a")))
    with AckedPublisher(broker, client_id="test") as publisher, recording.engine.connect() as connection:
        replay(connection, publisher, ids, by="tester", policy=POLICY)
        connection.rollback()
    assert states(recording) == [(ids[0], "open")]
    replayed(recording, broker, ids)
    assert len(read(broker, topic)) == 2
    record_all(recording, broker, topic)
    assert recording.one("SELECT count(*) FROM events") == (1,)
    assert recording.one("SELECT count(*) FROM turns") == (1,)
    assert states(recording) == [(ids[0], "replayed")]


def test_a_broker_that_does_not_acknowledge_leaves_letters_open(recording: Recording) -> None:
    class Silent:
        def publish(self, topic: str, records: Sequence[WireRecord]) -> list[Position]:
            raise PublishFailed("no")

    ids = keep(recording, "agent-events", wire(turn("a")))
    with pytest.raises(PublishFailed), recording.engine.begin() as connection:
        replay(connection, Silent(), ids, by="tester", policy=POLICY)
    assert states(recording) == [(ids[0], "open")]


def test_what_fails_again_is_a_letter_of_its_own_and_has_an_end(recording: Recording, broker: str, topic: str) -> None:
    number = keep(recording, topic, WireRecord(b"k", b"{", []), start=1000)[0]
    for turn_ in range(1, 4):
        (settled,) = replayed(recording, broker, [number])
        assert settled.done
        record_all(recording, broker, topic)
        before, (number, replays) = (
            number,
            recording.one("SELECT dead_letter_id, replays FROM dead_letters WHERE replay_of = :n", n=number),
        )
        assert (number > before, replays) == (True, turn_)
    (refused,) = replayed(recording, broker, [number])
    assert not refused.done
    assert "was replayed 3 times already" in refused.words
    assert "HINDSTREAM_DEAD_LETTERS__MAX_REPLAYS" in refused.words
    assert recording.rows("SELECT state, count(*) FROM dead_letters GROUP BY 1 ORDER BY 1") == [
        ("open", 1),
        ("replayed", 3),
    ]


def test_a_conflict_is_not_replayed_and_says_why(recording: Recording, broker: str, topic: str) -> None:
    ids = keep(recording, topic, wire(turn("a")), error="IdConflict")
    ids += keep(recording, topic, WireRecord(b"k", None, []), start=1)  # type: ignore[arg-type]
    missing, conflict, empty = replayed(recording, broker, [*ids, 999_999])
    assert not any(one.done for one in (conflict, empty, missing))
    assert "would fail again with IdConflict: it was wrong. Drop it" in conflict.words
    assert "no value" in empty.words
    assert "no such dead letter" in missing.words
    assert read(broker, topic) == []
    other = LetterPolicy(actions={"IdConflict": "ask"})
    assert [one.done for one in replayed(recording, broker, ids[:1], other)] == [True]


def test_a_drop_keeps_the_letter_with_its_reason_and_can_be_undone(
    recording: Recording, broker: str, topic: str
) -> None:
    ids = keep(recording, topic, wire(turn("a")), wire(turn("b", "other")))
    with recording.engine.begin() as connection:
        assert all(one.done for one in drop(connection, ids, by="ann", reason="a test of the producer's"))
        (again,) = drop(connection, ids[:1], by="bob", reason="other")
    assert not again.done
    assert "by ann: a test of the producer's" in again.words
    assert (
        recording.rows("SELECT state, state_changed_by, reason FROM dead_letters")
        == [("dropped", "ann", "a test of the producer's")] * 2
    )
    assert [one.done for one in replayed(recording, broker, ids[:1])] == [True]
    with recording.engine.begin() as connection:
        assert drop(connection, ids[:1], by="ann", reason="late")[0].done is False
        assert drop(connection, ids, by="ann", reason="gone", purge=True)[0].done
    assert recording.one("SELECT count(*) FROM dead_letters") == (0,)


async def test_the_policy_retries_by_itself_what_may_pass(recording: Recording, broker: str, topic: str) -> None:
    """A newer type is retried after its wait, and four times as long after each replay; what asks for somebody, a
    conflict, and another topic's letter stay."""
    may_pass = keep(recording, topic, wire(turn("a")), wire(turn("b")), error="UnknownEventType")
    keep(recording, topic, wire(turn("c")), error="MalformedEvent", start=10)
    keep(recording, topic, wire(turn("d")), error="IdConflict", start=20)
    keep(recording, "elsewhere", wire(turn("e")), error="ClaimCheckMissing", start=30)
    with recording.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE dead_letters SET created_at = now() - interval '1 hour'")
        connection.exec_driver_sql(
            "UPDATE dead_letters SET replays = 2 WHERE dead_letter_id = %(id)s", {"id": may_pass[1]}
        )
    config = LettersConfig(
        bootstrap_servers=broker, policy=LetterPolicy(retry_after_s=600.0), topic=topic, every_s=0.05
    )
    stop = asyncio.Event()
    running = asyncio.create_task(run_letters(config, recording.engine, stop, Health()))
    await until(lambda: running.done() or ("replayed",) in recording.rows("SELECT state FROM dead_letters"), 60.0)
    await asyncio.sleep(0.3)
    stop.set()
    await running
    settled = recording.rows("SELECT dead_letter_id, state_changed_by FROM dead_letters WHERE state <> 'open'")
    assert settled == [(may_pass[0], "policy")], "the other one waits 600 s times 16"
    assert [got.value for got in read(broker, topic)] == [wire(turn("a")).value]


def test_settled_letters_are_deleted_after_the_days_that_were_asked_for(recording: Recording) -> None:
    ids = keep(recording, "agent-events", *[wire(turn(f"t{i}")) for i in range(3)])
    with recording.engine.begin() as connection:
        drop(connection, ids[:2], by="ann", reason="no")
        connection.exec_driver_sql(
            "UPDATE dead_letters SET state_changed_at = now() - interval '8 days' WHERE dead_letter_id = %(id)s",
            {"id": ids[0]},
        )
        assert purge_settled(connection, LetterPolicy()) == 0
        assert purge_settled(connection, LetterPolicy(keep_days=7)) == 1
    assert states(recording) == [(ids[1], "dropped"), (ids[2], "open")]


def test_the_command_line_lists_shows_replays_and_drops(
    recording: Recording,
    broker: str,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    url = recording.engine.url.render_as_string(hide_password=False).replace("+psycopg", "")
    monkeypatch.setenv("HINDSTREAM_DATABASE__URL", url)
    monkeypatch.setenv("HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS", broker)
    monkeypatch.setenv("HINDSTREAM_HOME", str(tmp_path))

    def said(*arguments: str) -> tuple[int, bytes, str]:
        with pytest.raises(SystemExit) as ended:
            app(["dead-letters", *arguments])
        written = capfdbinary.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, written.out, written.err.decode()

    hostile = WireRecord(b"k", b"\x1b[2Jsecret\xff", [("ce_id", b"\x1b]0;x\x07")])
    ids = keep(recording, topic, hostile, wire(turn("a")))
    keep(recording, topic, wire(turn("b")), error="IdConflict", start=10)
    code, out, _ = said("list", "--topic", topic, "--error", "MalformedEvent", "--since", "1h", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [row["dead_letter_id"] for row in rows] == [ids[1], ids[0]]
    assert (rows[1]["topic"], rows[1]["bytes"], rows[1]["state"]) == (topic, 11, "open")
    code, out, _ = said("list", "--since", "1h")
    assert b"MalformedEvent" in out
    assert b"3 of 3" in out
    code, out, _ = said("show", str(ids[0]))
    assert b"\x1b" not in out
    assert b"1b 5b 32 4a 73 65 63 72 65 74 ff" in out
    assert rb"ce_id: \x1b]0;x\x07" in out
    assert b"not UTF-8 from byte 10 on" in out
    assert said("show", str(ids[0]), "--raw")[1] == hostile.value
    assert said("replay")[0] == 2
    code, out, err = said("replay", "--all", "--topic", topic, "--by", "ann")
    assert code == 1, err
    assert b"left: a replay would fail again with IdConflict" in out
    assert [got.value for got in read(broker, topic)] == [hostile.value, wire(turn("a")).value]
    assert said("drop", "--all", "--error", "IdConflict", "--reason", "sent twice", "--by", "ann")[0] == 0
    assert said("list", "--json")[1] == b""
    keep(recording, "a-file.jsonl", wire(turn("z")), start=99)
    code, _, err = said("replay", "--all")
    assert (code, "a-file.jsonl is no topic of the broker" in err) == (2, True)
    for wrong in (
        ("list", "--state", "lost"),
        ("list", "--since", "soon"),
        ("show", "987654"),
        ("replay", "1", "--all"),
    ):
        code, _, err = said(*wrong)
        assert code == 2
        assert err.startswith("hindstream: ")
        assert "Traceback" not in err
