"""The gateway's cost: its answers beside those of the server behind it and of a bare pass-through, in one run.

Server, pass-through, gateway and broker are processes of their own and share the machine with the client. For the
latency of several connections each asks once in 100 ms (a stream: 400 ms), one after the other: connections that ask
again as soon as they are answered soon ask all at once, and then measured is how many wait, as the throughput says.
The gateway records everything: render, generate and derender at the server, and the turn on the log.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from benchmarks.http_load import Load, load, quantile
from benchmarks.memory import resident_mb
from benchmarks.results import Result
from benchmarks.stacks import bench_stack
from hindstream.cli.topics import ensure_topics
from hindstream.services import Services
from hindstream.stack.ports import choose

_EVERY_S = {1: 0.0, 16: 0.1, 64: 0.1}
"""By number of connections."""
_STREAM = 4
"""So many times longer for streams, which have 32 pieces each and take 52 ms."""
_MOST = 64
_PARTITIONS = 8
_REQUESTS = {None: 20, "small": 10, "long": 50}
"""A connection, of each measurement of latency."""
_THROUGHPUT = {None: 6_000, "small": 1_000, "long": 12_000}
_MEMORY = {None: 30_000, "small": 2_000, "long": 100_000}
"""Requests, each of a session of its own, while the gateway's memory is watched; a fifth of them before."""
_WARM = 3_000
_MS = 1_000.0


def run(console: Console, size: str | None) -> list[Result]:
    """All measurements, on a broker of their own that is gone afterwards."""
    with ExitStack() as stack:
        local = stack.enter_context(bench_stack(console, "broker"))
        ensure_topics(local.bootstrap, _PARTITIONS)
        upstream, _ = stack.enter_context(_process("benchmarks.fake_model"))
        bare, _ = stack.enter_context(_process("benchmarks.pass_through", upstream))
        gateway, pid = stack.enter_context(_gateway(local.directory, local.bootstrap, upstream))
        addresses = {"upstream": upstream, "bare": bare, "gateway": gateway}
        for url in addresses.values():  # the first requests pay for connections and the broker's compiler
            asyncio.run(load(url, connections=_MOST, requests=_WARM, streamed=False, name="warm"))
        results = [*_latencies(console, addresses, _REQUESTS[size]), *_rates(addresses, _THROUGHPUT[size])]
        return [*results, *_memory(gateway, pid, _MEMORY[size])]


def _latencies(console: Console, addresses: dict[str, str], each: int) -> Iterator[Result]:
    for streamed in (False, True):
        for connections, every_s in _EVERY_S.items():
            console.print(f"{connections} connections, {'streamed' if streamed else 'whole'} answers …")
            found = {
                name: asyncio.run(
                    load(
                        url,
                        connections=connections,
                        requests=max(connections, 10) * each,
                        streamed=streamed,
                        every_s=every_s * (_STREAM if streamed else 1),
                        name=f"{name}-{connections}-{streamed}",
                    )
                )
                for name, url in addresses.items()
            }
            label = f"{'stream' if streamed else 'whole'}_{connections}"
            yield _added(f"added_latency_median_ms_{label}", found, 0.5, first=False)
            yield _added(f"added_latency_p99_ms_{label}", found, 0.99, first=False)
            if streamed:
                yield _added(f"first_byte_added_ms_{label}", found, 0.5, first=True)


def _added(name: str, found: dict[str, Load], q: float, *, first: bool) -> Result:
    """What the gateway adds to the server's own milliseconds, beside what the pass-through adds."""
    at = {where: _MS * quantile(one.first_bytes_s if first else one.latencies_s, q) for where, one in found.items()}
    return Result(
        name=name,
        value=at["gateway"] - at["upstream"],
        unit="ms",
        baseline=at["bare"] - at["upstream"],
        baseline_name="ms of a bare aiohttp pass-through",
    )


def _rates(addresses: dict[str, str], requests: int) -> Iterator[Result]:
    found = {
        name: asyncio.run(
            load(url, connections=_MOST, requests=requests, streamed=False, name=f"{name}-rate")
        ).requests_per_s
        for name, url in addresses.items()
    }
    yield Result(name="pass_through_requests_per_s", value=found["bare"], unit="requests/s at 64 connections")
    yield Result(
        name="requests_per_s",
        value=found["gateway"],
        unit="requests/s at 64 connections",
        baseline=found["upstream"],
        baseline_name="requests/s of the server itself",
    )
    yield Result(
        name="ratio_pass_through",
        value=found["gateway"] / found["bare"],
        unit="of its rate",
    )


def _memory(gateway: str, pid: int, requests: int) -> Iterator[Result]:
    warm = requests // 5
    asyncio.run(load(gateway, connections=_MOST, requests=warm, streamed=False, name="warm-memory"))
    before = resident_mb(pid)
    asyncio.run(load(gateway, connections=_MOST, requests=requests, streamed=False, name="memory"))
    yield Result(
        name="memory_growth_mb",
        value=resident_mb(pid) - before,
        unit=f"MB over {requests:,} requests and sessions",
        baseline=before,
        baseline_name="MB before",
    )


@contextmanager
def _process(module: str, *arguments: str) -> Iterator[tuple[str, int]]:
    """A process that prints its address first; its address and id."""
    process = subprocess.Popen([sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _gateway(home: Path, bootstrap: str, upstream: str) -> Iterator[tuple[str, int]]:
    port = choose()
    services = Services(
        home / "logs",
        {
            "HINDSTREAM_HOME": str(home / "gateway"),
            "HINDSTREAM_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
            "HINDSTREAM_POLICY__URL": upstream,
        },
    )
    log = (home / "gateway.log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "hindstream", "gateway", "run", "--port", str(port), "--log-level", "warning"],
        env=services.environment,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline().startswith("gateway at"):
            raise RuntimeError(f"the gateway did not start: {(home / 'gateway.log').read_text()}")
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait()
        log.close()
