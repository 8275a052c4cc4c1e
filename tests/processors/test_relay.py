"""The outbox reaches Kafka: in order, at least once, and nothing that was committed late is passed over."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka.admin import KafkaAdminClient, NewTopic

from processors.health import Health
from processors.relay import RelayConfig, relay_once, run_relay
from schemas.database import make_engine
from schemas.envelope import WireRecord, decode, encode, new_event
from schemas.events import SESSION_CLOSED, SessionClosed
from schemas.publish import PublishFailed
from schemas.topics import AGENT_EVENTS, MICRO_BATCHES, SIGNALS, topic_specs
from tests.processors.conversations import Recording
from tests.processors.evaluating import until

pytestmark = pytest.mark.stack


class Kept:
    """A publisher that keeps what it is given; `failing` times it says that the broker did not acknowledge."""

    def __init__(self, failing: int = 0) -> None:
        self.records: list[tuple[str, WireRecord]] = []
        self.failing = failing

    def publish(self, topic: str, records: Sequence[WireRecord]) -> None:
        if self.failing:
            self.failing -= 1
            self.records.append((topic, records[0]))
            raise PublishFailed(f"{topic}: the broker did not acknowledge")
        self.records += [(topic, record) for record in records]

    def ids(self) -> list[str]:
        return [dict(record.headers)["ce_id"].decode() for _, record in self.records]


def put(recording: Recording, *ids: str, topic: str = SIGNALS, value: bytes = b"{}") -> None:
    with recording.engine.begin() as connection:
        for message_id in ids:
            _insert(connection, message_id, topic, value)


def _insert(connection: Any, message_id: str, topic: str = SIGNALS, value: bytes = b"{}") -> None:
    connection.exec_driver_sql(
        "INSERT INTO outbox (topic, message_id, message_type, key, value) VALUES (%(t)s, %(i)s, 'x.v1', 'k', %(v)s)",
        {"t": topic, "i": message_id, "v": value},
    )


def relayed(recording: Recording, publisher: Any, topic: str = SIGNALS, n: int = 100) -> int:
    with recording.engine.begin() as connection:
        return relay_once(connection, publisher, topic, n)


def unsent(recording: Recording) -> list[str]:
    return [row[0] for row in recording.rows("SELECT message_id FROM outbox WHERE sent_at IS NULL ORDER BY outbox_id")]


def test_messages_go_in_order_and_once(recording: Recording) -> None:
    put(recording, *(f"m{i}" for i in range(5)))
    kept = Kept()
    assert [relayed(recording, kept, n=2) for _ in range(4)] == [2, 2, 1, 0]
    assert kept.ids() == [f"m{i}" for i in range(5)]
    assert unsent(recording) == []


def test_headers_say_what_it_is(recording: Recording) -> None:
    put(recording, "m", value=b'{"a": 1}')
    kept = Kept()
    relayed(recording, kept)
    ((topic, record),) = kept.records
    headers = dict(record.headers)
    assert (topic, record.key, record.value) == (SIGNALS, b"k", b'{"a": 1}')
    assert headers["ce_id"] == b"m"
    assert headers["ce_type"] == b"x.v1"
    assert headers["ce_source"] == b"hindstream/worker"
    assert headers["ce_specversion"] == b"1.0"
    assert headers["content-type"] == b"application/json"
    assert headers["ce_time"].endswith(b"Z")


def test_an_id_that_was_taken_early_and_committed_late_is_sent(recording: Recording) -> None:
    kept = Kept()
    with recording.engine.connect() as slow:
        _insert(slow, "early")
        put(recording, "late")
        assert relayed(recording, kept) == 1
        assert kept.ids() == ["late"]
        slow.commit()
    assert relayed(recording, kept) == 1
    assert kept.ids() == ["late", "early"]


def test_what_was_not_acknowledged_is_sent_again_whole_and_in_order(recording: Recording) -> None:
    put(recording, "a", "b", "c")
    kept = Kept(failing=1)
    with pytest.raises(PublishFailed):
        relayed(recording, kept)
    assert unsent(recording) == ["a", "b", "c"]
    assert relayed(recording, kept) == 3
    assert kept.ids() == ["a", "a", "b", "c"]
    assert unsent(recording) == []


def test_one_relay_a_topic_at_a_time(recording: Recording) -> None:
    put(recording, *(f"m{i}" for i in range(20)))
    kept = Kept()
    with recording.engine.connect() as other:
        assert relay_once(other, kept, SIGNALS, 3) == 3
        assert relayed(recording, kept) == 0
        put(recording, "b", topic=MICRO_BATCHES)
        assert relayed(recording, kept, topic=MICRO_BATCHES) == 1
        other.rollback()  # it died after sending: its three are sent again
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: relayed(recording, kept, n=7), range(12)))
    while relayed(recording, kept, n=7):  # a try that found the topic taken sent nothing
        pass
    assert unsent(recording) == []
    assert [name for name in kept.ids() if name != "b"][3:] == [f"m{i}" for i in range(20)]


@pytest.fixture
def consumer(broker: str) -> Iterator[KafkaConsumer]:
    """A reader of the topics from their present ends."""
    reader = KafkaConsumer(bootstrap_servers=broker, auto_offset_reset="earliest", enable_auto_commit=False)
    yield reader
    reader.close()


def make_topics(broker: str) -> None:
    """Have the topics, as `hindstream topics create` makes them."""
    admin = KafkaAdminClient(bootstrap_servers=broker)
    missing = [spec for spec in topic_specs() if spec.name not in admin.list_topics()]
    if missing:
        admin.create_topics([NewTopic(name=spec.name, num_partitions=spec.partitions) for spec in missing])
    admin.close()


def name_of(record: Any) -> str:
    """The `ce_id` of a record; empty where it has none."""
    return dict(record.headers).get("ce_id", b"").decode()


def read(consumer: KafkaConsumer, n: int, ours: Callable[[Any], bool]) -> list[Any]:
    """`n` records that are `ours`, from where the reader stands: the broker's topics hold other tests' records too."""
    records: list[Any] = []
    for _ in range(100):
        for found in consumer.poll(timeout_ms=200).values():
            records += [record for record in found if ours(record)]
        if len(records) >= n:
            break
    return records


async def test_the_service_sends_to_a_real_broker_until_stopped(
    recording: Recording, broker: str, consumer: KafkaConsumer
) -> None:
    tag = secrets.token_hex(4)
    make_topics(broker)
    ids = [f"{tag}-{i}" for i in range(30)]
    put(recording, *ids)
    closing = encode(new_event(SessionClosed(session_id=tag, reason="idle"), id=f"idle-{tag}", source="x"))
    with recording.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO outbox (topic, message_id, message_type, key, value) VALUES (%s, %s, %s, %s, %s)",
            (AGENT_EVENTS, f"idle-{tag}", SESSION_CLOSED, tag, closing.value),
        )
    stop = asyncio.Event()
    running = asyncio.create_task(run_relay(RelayConfig(bootstrap_servers=broker), recording.engine, stop, Health()))
    await until(lambda: unsent(recording) == [], 30)
    put(recording, f"{tag}-more")
    await until(lambda: unsent(recording) == [], 10)
    stop.set()
    await asyncio.wait_for(running, 10)

    consumer.subscribe([SIGNALS, AGENT_EVENTS])
    records = await asyncio.to_thread(read, consumer, 32, lambda record: tag in name_of(record))
    assert [name_of(r) for r in records if r.topic == SIGNALS and r.key == b"k"] == [*ids, f"{tag}-more"]
    (event,) = [decode(r.value, r.headers) for r in records if r.key == tag.encode()]
    assert event.source == "hindstream/worker"
    assert event.data == SessionClosed(session_id=tag, reason="idle")


async def test_a_broker_that_is_away_is_waited_for_and_a_stop_is_heard(recording: Recording) -> None:
    put(recording, "m")
    stop, health = asyncio.Event(), Health()
    config = RelayConfig(bootstrap_servers="127.0.0.1:9", timeout_s=1.0)
    running = asyncio.create_task(run_relay(config, recording.engine, stop, health))
    await until(lambda: health.parts.get(f"relay {SIGNALS}", ("", ""))[0] == "waiting", 60)
    assert unsent(recording) == ["m"]
    stop.set()
    await asyncio.wait_for(running, 60)


async def test_a_database_that_refuses_ends_the_service(database_url: str) -> None:
    """No tables: nothing that waiting mends."""
    engine = make_engine(database_url, pool_size=1, application_name="test")
    kept = Kept()
    with engine.connect() as connection, pytest.raises(Exception, match="outbox"):
        relay_once(connection, kept, SIGNALS, 1)
    assert kept.records == []
    assert json.dumps(kept.ids()) == "[]"
    engine.dispose()
