"""The baseline of the recording path: a Faust agent that takes events and does nothing with them.

`python -m benchmarks.idle_agent BOOTSTRAP EVENTS FILE` writes the seconds between its first and last event to FILE.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import faust

from schemas.topics import AGENT_EVENTS

_BATCH = 256
"""The size of a batch of the real agent, so that only the work differs."""


def main(bootstrap: str, events: int, file: Path) -> None:
    """Count to `events` and end."""
    app = faust.App(
        "hindstream-benchmark-idle",
        broker=f"kafka://{bootstrap}",
        store="memory://",
        web_enabled=False,
        topic_partitions=1,
        consumer_auto_offset_reset="earliest",
    )
    topic = app.topic(AGENT_EVENTS, key_type=bytes, value_type=bytes, value_serializer="raw", key_serializer="raw")
    seen, first = 0, 0.0

    @app.agent(topic, concurrency=1)
    async def idle(stream: Any) -> None:
        nonlocal seen, first
        async for batch in stream.take(_BATCH, within=0.05):
            first = first or time.perf_counter()
            seen += len(batch)
            if seen >= events:
                file.write_text(str(time.perf_counter() - first))

    app.main()


if __name__ == "__main__":
    bootstrap_servers, count, target = sys.argv[1:4]
    sys.argv = [sys.argv[0], "worker", "--without-web", "-l", "error"]
    main(bootstrap_servers, int(count), Path(target))
