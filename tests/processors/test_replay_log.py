"""A range of a real topic: one order over its partitions, bounds by time and offset, and what retention took."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.structs import TopicPartition

from processors.replay.log import LogAway, LogGone, LogRange
from processors.replay.selection import Selection
from processors.replay.sources import TopicLog

pytestmark = pytest.mark.stack

EPOCH = 1_700_000_000_000
"""Milliseconds: the log's first record."""
KEPT = {"retention.ms": "-1"}
"""These records are years old by their own time: a broker would delete them at its next look."""


@pytest.fixture
def topic(broker: str) -> Iterator[str]:
    """Three partitions; record i of 30 has time i seconds, and goes to partition 0, 1, 2 in runs of different lengths.
    Partition 2 has one record that is late: its time is before its predecessor's."""
    name = f"replay-{secrets.token_hex(4)}"
    admin = KafkaAdminClient(bootstrap_servers=broker)
    admin.create_topics([NewTopic(name, num_partitions=3, replication_factor=1, topic_configs=KEPT)])
    producer = KafkaProducer(bootstrap_servers=broker, linger_ms=0)
    for number in range(30):
        late = 7 if number == 20 else 0
        producer.send(
            name,
            str(number).encode(),
            key=f"s{number}".encode(),
            partition=partition_of(number),
            timestamp_ms=EPOCH + (number - late) * 1000,
        ).get(10)
    producer.close()
    yield name
    admin.delete_topics([name])
    admin.close()


def partition_of(number: int) -> int:
    return 0 if number % 5 == 0 else 1 if number % 5 < 3 else 2


def read(broker: str, topic: str, starts: dict[int, int], ends: dict[int, int]) -> list[int]:
    with LogRange(broker, topic) as log:
        return [int(delivery.value or b"") for delivery, _ in log.read(starts, ends, threading.Event())]


def bounds(broker: str, topic: str, **selection: object) -> tuple[dict[int, int], dict[int, int]]:
    return TopicLog(broker, topic).bounds(Selection(**selection))  # type: ignore[arg-type]


def at(second: int) -> str:
    return datetime.fromtimestamp(EPOCH / 1000 + second, UTC).isoformat()


def test_partitions_are_merged_by_the_log_s_time_and_keep_their_own_order(broker: str, topic: str) -> None:
    starts, ends = bounds(broker, topic)
    assert (starts, ends) == ({0: 0, 1: 0, 2: 0}, {0: 6, 1: 12, 2: 12})
    order = read(broker, topic, starts, ends)
    # 20 says 13 s and stands behind 15 on its partition; nothing of a partition is turned round for it.
    assert [number for number in order if partition_of(number) == 0] == [0, 5, 10, 15, 20, 25]
    assert order == [*range(16), 20, *range(16, 20), *range(21, 30)]
    assert read(broker, topic, starts, ends) == order


def test_reading_goes_on_from_any_place_as_if_it_had_not_stopped(broker: str, topic: str) -> None:
    starts, ends = bounds(broker, topic)
    whole = read(broker, topic, starts, ends)
    next_ = dict(starts)
    for place, number in enumerate(whole):
        if place % 7 == 0:
            assert read(broker, topic, next_, ends) == whole[place:]
        next_[partition_of(number)] += 1
    assert read(broker, topic, ends, ends) == []


def test_bounds_are_by_the_log_s_time_or_by_offset(broker: str, topic: str) -> None:
    order = read(broker, topic, *bounds(broker, topic, since=at(8), until=at(12)))
    assert order == [8, 9, 10, 11]
    assert read(broker, topic, *bounds(broker, topic, since=at(28))) == [28, 29]
    assert read(broker, topic, *bounds(broker, topic, since=at(99))) == []
    picked = bounds(broker, topic, offsets={"0": (1, 3), "2": (0, 1)})
    assert read(broker, topic, *picked) == [3, 5, 10]
    with pytest.raises(ValueError, match=r"no partition '7'; there are 0, 1, 2"):
        bounds(broker, topic, offsets={"7": (0, 1)})
    with pytest.raises(ValueError, match="since is 'yesterday'; write a time as"):
        bounds(broker, topic, since="yesterday")


def test_what_retention_has_deleted_is_told_and_not_passed_over(broker: str, topic: str) -> None:
    starts, ends = bounds(broker, topic)
    admin = KafkaAdminClient(bootstrap_servers=broker)
    admin.delete_records({TopicPartition(topic, 1): 4})
    admin.close()
    with pytest.raises(LogGone, match=r"partition 1, offsets 0 to 3.*retention has deleted it"):
        read(broker, topic, starts, ends)
    assert bounds(broker, topic)[0] == {0: 0, 1: 4, 2: 0}


def test_a_stop_ends_the_reading(broker: str, topic: str) -> None:
    stop = threading.Event()
    seen = []
    with LogRange(broker, topic) as log:
        for delivery, _ in log.read(*bounds(broker, topic), stop):
            seen.append(delivery)
            if len(seen) == 5:
                stop.set()
    assert len(seen) == 5


def test_a_broker_or_topic_that_is_not_there_is_one_clear_line(broker: str) -> None:
    with pytest.raises(LogAway, match="has no topic 'nowhere'"):
        LogRange(broker, "nowhere")


def test_a_partition_that_is_thousands_of_records_ahead_is_waited_for(broker: str) -> None:
    """Its records neither pile up nor keep the other from being read."""
    name = f"replay-{secrets.token_hex(4)}"
    admin = KafkaAdminClient(bootstrap_servers=broker)
    admin.create_topics([NewTopic(name, num_partitions=2, replication_factor=1, topic_configs=KEPT)])
    producer = KafkaProducer(bootstrap_servers=broker, linger_ms=20)
    count = 9_000
    for number in range(count):
        partition = int(number >= count // 2)
        producer.send(name, b"%d %s" % (number, b"x" * 400), partition=partition, timestamp_ms=EPOCH + number)
    producer.close()
    stop = threading.Event()
    timer = threading.Timer(30, stop.set)
    timer.start()
    with LogRange(broker, name) as log:
        order = [int(one.value.split()[0]) for one, _ in log.read(*log.bounds(None, None), stop) if one.value]
    timer.cancel()
    assert order == list(range(count))
    admin.delete_topics([name])
    admin.close()
