"""The broker: Apache Kafka itself, one KRaft node that is broker and controller, on loopback only."""

from __future__ import annotations

import base64
import signal
import socket
import subprocess
import uuid
from pathlib import Path

from hindstream.errors import UserError
from hindstream.settings import child_environment
from hindstream.stack import jars, java, ports, processes
from hindstream.stack.ports import LOOPBACK
from hindstream.stack.processes import ProcessId
from hindstream.stack.service import Managed
from hindstream.stack.state import write_whole

CONTROLLER_PORT = "broker-controller"
# Events over 1 MiB go by claim check; a record of that size and its headers must pass, a mistake of 100 MB
# must not.
MAX_MESSAGE_BYTES = 2 * 1024 * 1024
# An answer of the admin API takes milliseconds; a broker that is just opening its socket may hold one for
# longer.
PROBE_TIMEOUT_MS = 3000

LOG_CONFIG = """\
status=warn
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ISO8601} %p %c{1}: %m%n
rootLogger.level=info
rootLogger.appenderRef.out.ref=out
"""


class Broker(Managed):
    """Acknowledged records survive `kill -9`: they are in the kernel's page cache before the acknowledgement.
    They do not survive a power cut within the seconds until the kernel writes them out; that takes a
    cluster."""

    name = "broker"
    program = "java"
    port_setting = ("kafka", "port")
    stop_signal = signal.SIGTERM
    # A clean stop writes the recovery point of every partition; after a kill the next start reads the last
    # segments.
    stop_grace_s = 30.0
    start_timeout_s = 120.0

    def fixed_port(self) -> int:
        return self.context.settings.kafka.port

    def prepare(self) -> None:
        settings = self.context.settings
        self._java = java.find(settings.kafka.java_home)
        self._jars = jars.ensure(
            settings.cache.expanduser() / "broker", settings.kafka.maven_repository, self._java, self.say
        )
        write_whole(self.directory / "log4j2.properties", LOG_CONFIG)

    def launch(self, port: int) -> ProcessId:
        controller = self._controller_port(port)
        config = self.directory / "server.properties"
        data = self.directory / "data"
        write_whole(config, properties(port, controller, data, self.context.settings.kafka.partitions))
        if not (data / "meta.properties").exists():
            self._format(config)
        command = [
            *self._command(f"-Xmx{self.context.settings.kafka.heap_mb}m", "-Xms64m"),
            "kafka.Kafka",
            str(config),
        ]
        return processes.spawn(command, log=self.log, cwd=self.directory, env=child_environment())

    def is_ready(self, port: int) -> bool:
        return answers(f"{LOOPBACK}:{port}")

    def finish(self, port: int) -> None:
        """Nothing: topics are made by `hindstream topics create`."""

    def _controller_port(self, broker_port: int) -> int:
        memory = self.context.memory
        controller, _ = ports.settle(
            fixed=0,
            remembered=memory.state.ports.get(CONTROLLER_PORT),
            what="broker's controller",
            variable="",
            avoid=frozenset({broker_port, *memory.state.ports.values()}),
        )
        memory.update(lambda state: state.ports.__setitem__(CONTROLLER_PORT, controller))
        return controller

    def _command(self, *options: str) -> list[str]:
        # The serial collector: with a heap of half a gigabyte its pauses are milliseconds, and it needs no
        # threads beside the two cores that the models use.
        return [
            str(self._java),
            *options,
            "-XX:+UseSerialGC",
            "-XX:+ExitOnOutOfMemoryError",
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}",
            "-cp",
            str(self._jars / "*"),
        ]

    def _format(self, config: Path) -> None:
        # A Kafka cluster id is 16 random bytes in URL-safe base64 without padding; one that starts with a
        # dash would be read as an option.
        cluster = "-"
        while cluster.startswith("-"):
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = [*self._command("-Xmx256m", "-XX:TieredStopAtLevel=1"), "kafka.tools.StorageTool", "format"]
        command += ["--standalone", "--ignore-formatted", "--cluster-id", cluster, "--config", str(config)]
        ran = subprocess.run(
            command, capture_output=True, text=True, cwd=self.directory, env=child_environment(), check=False
        )
        if ran.returncode != 0:
            lines = (ran.stderr + ran.stdout).strip().splitlines() or ["no message"]
            raise UserError(f"the broker's storage in {self.directory} could not be formatted: {lines[-1]}")


def properties(port: int, controller: int, data: Path, partitions: int) -> str:
    """The broker's configuration file. One node, so every replication factor and minimum ISR is 1."""
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"BROKER://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller}",
        "advertised.listeners": f"BROKER://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller}",
        "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "BROKER",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": f"{LOOPBACK}:{controller}",
        "log.dirs": str(data),
        "num.partitions": str(partitions),
        # A mistyped topic is an error, not an empty topic.
        "auto.create.topics.enable": "false",
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "offsets.topic.replication.factor": "1",
        # 50 by default: 50 directories to open at every start for a handful of groups.
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "4",
        # Three seconds by default, to wait for more members of a group that is just starting: here one is
        # all.
        "group.initial.rebalance.delay.ms": "0",
        # After `kill -9` the controller keeps the broker's place for its dead self until that session runs out (9 s by
        # default). Both are one process here, so a short session costs nothing but a fence of milliseconds after a
        # stall of the whole machine.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "message.max.bytes": str(MAX_MESSAGE_BYTES),
        "replica.fetch.max.bytes": str(MAX_MESSAGE_BYTES),
        # 128 MB by default, a quarter of our heap: 16 MB still deduplicates 700,000 keys in one pass.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        # After a kill every segment since the last recovery point is read again: small segments, short
        # starts.
        "log.segment.bytes": str(128 * 1024 * 1024),
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "2",
    }
    return "".join(f"{key}={value}\n" for key, value in values.items())


def answers(bootstrap: str) -> bool:
    """True if a broker there answers an admin request and has let itself in (is not fenced)."""
    host, _, port = bootstrap.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1.0).close()
    except OSError:
        return False
    # Imported here: `hindstream config show` should not pay for it.
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    try:
        admin = KafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=PROBE_TIMEOUT_MS)
    except (KafkaError, OSError):
        return False
    try:
        cluster = admin.describe_cluster()
        return any(not broker.get("is_fenced", False) for broker in cluster["brokers"])
    except (KafkaError, OSError):
        return False
    finally:
        admin.close()
