"""The local stack on real processes: from nothing, again, after `kill -9`, twice at once, side by side."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from hindstream.errors import UserError
from hindstream.settings import DatabaseSettings, KafkaSettings, Settings
from hindstream.stack import java, ports, processes
from hindstream.stack.local import Endpoints, Stack
from hindstream.stack.state import read

pytestmark = pytest.mark.stack
BOTH = ("broker", "postgres")
HINDSTREAM = [sys.executable, "-m", "hindstream.cli.main"]


@pytest.fixture
def make_stack(tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    """`make_stack(name, **settings)` gives a stack with a home of its own, removed after the test."""
    made: list[Stack] = []

    def make(name: str = "home", **settings: object) -> Stack:
        stack = Stack(tmp_path / name, Settings.model_validate({"home": tmp_path / name, **settings}))
        made.append(stack)
        return stack

    yield make
    for stack in made:
        stack.remove()


def kill(stack: Stack, *names: str) -> None:
    for name in names:
        process = stack.known()[name].process
        os.kill(process.pid, signal.SIGKILL)
        assert processes.wait_until_gone(process, 10)


def topic(address: str, name: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])
    admin.close()


def produce(address: str, name: str, values: list[bytes]) -> None:
    """Returns once the broker has acknowledged every record."""
    producer = KafkaProducer(bootstrap_servers=address, acks="all")
    for future in [producer.send(name, value) for value in values]:
        future.get(timeout=30)
    producer.close()


def consume(address: str, name: str) -> list[bytes]:
    consumer = KafkaConsumer(bootstrap_servers=address)
    partition = TopicPartition(name, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    end = consumer.end_offsets([partition])[partition]
    values: list[bytes] = []
    deadline = time.monotonic() + 30
    while consumer.position(partition) < end:
        assert time.monotonic() < deadline, f"{len(values)} of {end} records after 30 s"
        values += [record.value for batch in consumer.poll(500).values() for record in batch]
    consumer.close()
    return values


def insert(url: str, numbers: range) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (n int PRIMARY KEY)")
        for number in numbers:
            connection.execute("INSERT INTO kept VALUES (%s)", (number,))
            connection.commit()


def kept(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT n FROM kept ORDER BY n")]


@contextlib.contextmanager
def listening(taken: list[int]) -> Iterator[None]:
    """Somebody listens on these ports while the block runs."""
    with contextlib.ExitStack() as open_sockets:
        for port in taken:
            listener = open_sockets.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((ports.LOOPBACK, port))
            listener.listen()
        yield


def both(endpoints: Endpoints) -> tuple[str, str]:
    assert endpoints.bootstrap_servers is not None
    assert endpoints.database_url is not None
    return endpoints.bootstrap_servers, endpoints.database_url


def test_everything_acknowledged_survives_stops_and_kills(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack()
    broker, database = both(stack.up(BOTH))
    topic(broker, "kept")
    values: list[bytes] = []
    numbers = 0
    # A clean stop, then kills of each alone and of both at once.
    for victims in ((), ("broker",), ("postgres",), BOTH):
        fresh = [f"{len(values) + n}".encode() for n in range(200)]
        produce(broker, "kept", fresh)
        values += fresh
        insert(database, range(numbers, numbers + 50))
        numbers += 50
        kill(stack, *victims)
        assert set(stack.running()) == set(BOTH) - set(victims)
        if not victims:
            assert stack.down() == list(BOTH)
            assert stack.running() == {}
        begun = time.monotonic()
        again = both(stack.up(BOTH))
        print(
            f"up after {'a kill of ' + ', '.join(victims) if victims else 'a stop'}: {time.monotonic() - begun:.1f} s"
        )
        assert again == (broker, database), "addresses survive a restart"
        assert consume(broker, "kept") == values
        assert kept(database) == list(range(numbers))


def test_a_second_start_takes_less_than_ten_seconds(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack()
    stack.up(BOTH)
    stack.down()
    begun = time.monotonic()
    stack.up(BOTH)
    took = time.monotonic() - begun
    print(f"second start of broker and Postgres: {took:.1f} s")
    # The promise is 10 s on a machine with nothing else to do, where 2 to 4 were measured; here others may be at work.
    assert took < (10 if os.getloadavg()[0] < 2 else 60)


def test_postgres_starts_beside_a_stranger_that_has_its_old_pid(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack()
    _, database = both(stack.up(BOTH))
    insert(database, range(3))
    kill(stack, "postgres")
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        # As after a reboot: the pid in Postgres' own file and in ours belongs to a process that runs.
        pid_file = (stack.home / "postgres").resolve() / "data/postmaster.pid"
        lines = pid_file.read_text().splitlines()
        pid_file.write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")
        state = json.loads((stack.home / "stack.json").read_text())
        state["services"]["postgres"]["process"]["pid"] = stranger.pid
        (stack.home / "stack.json").write_text(json.dumps(state))

        assert "postgres" not in stack.running()
        _, database = both(stack.up(BOTH))
        assert kept(database) == [0, 1, 2]
        assert stranger.poll() is None, "the stranger was signalled"
    finally:
        stranger.kill()
        stranger.wait()


def test_a_start_that_was_killed_before_it_was_noted_is_found(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack()
    _, database = both(stack.up(BOTH))
    insert(database, range(3))
    unnoted = [service.process for service in stack.known().values()]
    (stack.home / "stack.json").unlink()
    _, database = both(stack.up(BOTH))
    assert not any(processes.is_alive(process) for process in unnoted)
    assert kept(database) == [0, 1, 2]


def test_two_homes_run_side_by_side_and_know_nothing_of_each_other(make_stack: Callable[..., Stack]) -> None:
    one, other = make_stack("one"), make_stack("other")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        first, second = pool.map(lambda stack: both(stack.up(BOTH)), (one, other))
    assert first[0] != second[0]
    insert(first[1], range(3))
    insert(second[1], range(5))
    assert one.down() == list(BOTH)
    assert set(other.running()) == set(BOTH)
    assert kept(second[1]) == list(range(5))


def test_two_starts_at_once_start_one_of_each(make_stack: Callable[..., Stack], tmp_path: Path) -> None:
    make_stack()
    environment = os.environ | {"HINDSTREAM_HOME": str(tmp_path / "home")}
    command = [*HINDSTREAM, "up", "--only", "broker,postgres"]
    starts = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [start.communicate(timeout=180)[0] for start in starts]
    assert [start.returncode for start in starts] == [0, 0]
    assert sorted(text.count("already running") for text in said) == [0, 2]


def test_another_port_is_chosen_and_told_when_the_old_one_is_taken(make_stack: Callable[..., Stack]) -> None:
    said: list[str] = []
    stack = make_stack()
    stack._say = said.append
    _, database = both(stack.up(BOTH))
    insert(database, range(3))
    topic(stack.endpoints().bootstrap_servers or "", "kept")
    produce(stack.endpoints().bootstrap_servers or "", "kept", [b"1"])
    stack.down()
    taken = read(stack.home).ports
    with listening(list(taken.values())):
        broker, database = both(stack.up(BOTH))
        assert kept(database) == [0, 1, 2]
        assert consume(broker, "kept") == [b"1"]
        now = read(stack.home).ports
        assert not set(now.values()) & set(taken.values())
        assert f"postgres: port {taken['postgres']} is taken, using {now['postgres']} from now on" in said
        stack.down()


def test_a_fixed_port_that_is_taken_is_one_clear_line(make_stack: Callable[..., Stack]) -> None:
    port = ports.choose()
    stack = make_stack(database=DatabaseSettings(port=port))
    with listening([port]), pytest.raises(UserError, match=rf"port {port} is taken.*HINDSTREAM_DATABASE__PORT"):
        stack.up(("postgres",))
    # And nothing is left that would be in the way of the next try.
    assert stack.up(("postgres",)).database_url is not None


def test_the_password_is_needed_and_private(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack()
    url = stack.up(("postgres",)).database_url
    assert url is not None
    password = (stack.home / "postgres").resolve() / "password"
    assert password.stat().st_mode & 0o077 == 0
    assert password.read_text() in url
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(re.sub(r":[^:@]*@", ":wrong@", url))


def test_the_broker_runs_on_the_java_of_the_wheel(make_stack: Callable[..., Stack]) -> None:
    wheel = java.bundled()
    assert wheel is not None
    stack = make_stack(kafka=KafkaSettings(java_home=wheel.parent.parent))
    broker = stack.up(("broker",)).bootstrap_servers
    assert broker is not None
    topic(broker, "kept")
    produce(broker, "kept", [b"1"])
    assert consume(broker, "kept") == [b"1"]
    assert os.readlink(f"/proc/{stack.known()['broker'].process.pid}/exe") == str(wheel.resolve())


def test_postgres_does_not_run_as_root(make_stack: Callable[..., Stack]) -> None:
    stack = make_stack()
    stack.up(("postgres",))
    assert Path(f"/proc/{stack.known()['postgres'].process.pid}").stat().st_uid != 0


def test_the_command_line_starts_shows_and_stops(make_stack: Callable[..., Stack], tmp_path: Path) -> None:
    make_stack()
    environment = os.environ | {"HINDSTREAM_HOME": str(tmp_path / "home")}

    def call(*arguments: str, code: int = 0) -> str:
        ran = subprocess.run(
            [*HINDSTREAM, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=180
        )
        assert ran.returncode == code, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr

    assert "nothing was running" in call("down")
    assert "broker has no log yet" in call("logs", "broker", code=2)
    assert "is no service" in call("up", "--only", "brokr", code=2)
    assert "postgres: ready at 127.0.0.1:" in call("up", "--only", "postgres")
    status = call("status")
    state = read(tmp_path / "home").services["postgres"]
    assert re.search(rf"postgres +running +{state.process.pid} +127\.0\.0\.1:{state.port} ", status)
    assert re.search(r"broker +stopped", status)
    assert "ready to accept connections" in call("logs", "postgres")
    shown = call("config", "show")
    assert re.search(r"database\.url +postgresql://hindstream:\*{6}@127\.0\.0\.1:\d+/hindstream +local stack", shown)
    os.kill(state.process.pid, signal.SIGKILL)
    assert processes.wait_until_gone(state.process, 10)
    assert "dead: run `hindstream up`" in call("status", code=1)
    call("up", "--only", "postgres")
    assert "stopped: postgres" in call("down")
