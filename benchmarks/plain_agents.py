"""The baselines of the recording path: a Faust agent that does nothing with events, and one that counts in a table.

`python -m benchmarks.plain_agents KIND BOOTSTRAP EVENTS DIRECTORY` writes the seconds between its first and last event
to DIRECTORY/KIND.txt; KIND is `idle` or `table`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import faust

from schemas.topics import AGENT_EVENTS

Kind = Literal["idle", "table"]

_BATCH = 256
"""The size of a batch of the real agent, so that only the work differs."""
_PARTITIONS = 8
"""Of `agent-events` as the project makes it; a table's changelog must have as many."""
_LIMIT_S = 300.0


def main(kind: Kind, bootstrap: str, events: int, directory: Path) -> None:
    """Count to `events` and write the seconds."""
    app = faust.App(
        f"benchmark-{kind}",
        broker=f"kafka://{bootstrap}",
        datadir=directory / f"{kind}-data",
        store="memory://",
        web_enabled=False,
        topic_partitions=_PARTITIONS,
        consumer_auto_offset_reset="earliest",
    )
    topic = app.topic(AGENT_EVENTS, key_type=bytes, value_type=bytes, value_serializer="raw", key_serializer="raw")
    table = app.Table("sessions", default=int, partitions=_PARTITIONS, key_type=bytes) if kind == "table" else None
    seen, first = 0, 0.0

    def count(batch: int) -> None:
        nonlocal seen
        seen += batch
        if seen >= events:
            (directory / f"{kind}.txt").write_text(str(time.perf_counter() - first))

    @app.agent(topic, concurrency=1)
    async def agent(stream: Any) -> None:
        nonlocal first
        if table is None:
            async for batch in stream.take(_BATCH, within=0.05):
                first = first or time.perf_counter()
                count(len(batch))
        else:  # a table is written under the key and the partition of one event, which a batch has not
            async for key, _ in stream.items():
                first = first or time.perf_counter()
                table[key] += 1
                count(1)

    app.main()


def seconds(kind: Kind, bootstrap: str, events: int, directory: Path) -> float:
    """What the agent of this kind needs for `events` that are on the topic, in a process of its own.

    Raises:
        RuntimeError: it did not see them all.
    """
    file = directory / f"{kind}.txt"
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.plain_agents", kind, bootstrap, str(events), str(directory)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + _LIMIT_S
        while not (file.exists() and file.read_text()):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the {kind} agent did not see every event")
            time.sleep(0.1)
        return float(file.read_text())
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    arguments = sys.argv[1:5]
    sys.argv = [sys.argv[0], "worker", "--without-web", "-l", "error"]
    main("table" if arguments[0] == "table" else "idle", arguments[1], int(arguments[2]), Path(arguments[3]))
