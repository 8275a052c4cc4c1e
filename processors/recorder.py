"""The agent's work without Faust: batches of deliveries into Postgres, waiting out what passes by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from sqlalchemy import Engine

from processors.dead_letters import Delivery
from processors.flood import FloodGate
from processors.health import Health
from processors.recording import Outcome, record
from processors.retrying import until_done
from schemas.claim_check import BlobStore
from schemas.database import in_words, is_transient

_CHUNK_BYTES = 16 << 20
"""A batch of 256 events of 1 MiB would be one statement of half a gigabyte, near what Postgres takes at all and times
the number of copies on its way. At 16 MiB ordinary batches (some KiB an event) are never cut."""


class Recorder:
    """Records batches one after another in a thread of its own, so the event loop keeps its heartbeats.

    Args:
        engine: of the database; one connection is in use at a time.
        blobs: where claim checks are kept.
        gate: stops a flood of unreadable records.
        health: told under `part` when the database is away and when it is back.
    """

    def __init__(
        self, engine: Engine, *, blobs: BlobStore | None, gate: FloodGate, health: Health, part: str = "agents"
    ) -> None:
        self.totals = Outcome(0, 0, 0, 0)
        self._engine, self._blobs, self._gate, self._health, self._part = engine, blobs, gate, health, part
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="record")

    async def record(self, deliveries: Sequence[Delivery]) -> Outcome:
        """Return when all `deliveries` are committed, however long the database is away.

        Cancelling leaves each transaction whole: done or not at all.

        Raises:
            TooManyDeadLetters: too many unreadable records; the last chunk is not recorded.
            DBAPIError: a fault that waiting does not mend, such as a table that is not there.
        """
        outcome = Outcome(0, 0, 0, 0)
        for chunk in chunks(deliveries):
            outcome += await until_done(
                partial(asyncio.get_running_loop().run_in_executor, self._thread, self._once, chunk),
                transient=lambda err: is_transient(err) or isinstance(err, OSError),
                health=self._health,
                part=self._part,
                in_words=in_words,
            )
        self.totals += outcome
        return outcome

    def close(self) -> None:
        """Wait for a transaction in flight; its length is bounded by the engine's time limits."""
        self._thread.shutdown(wait=True)

    def _once(self, deliveries: Sequence[Delivery]) -> Outcome:
        with self._engine.begin() as connection:
            return record(connection, deliveries, blobs=self._blobs, gate=self._gate)


def chunks(deliveries: Sequence[Delivery], limit: int = _CHUNK_BYTES) -> Iterator[list[Delivery]]:
    """`deliveries` in order, cut so that the values of each part are under `limit` bytes; a larger one goes alone."""
    part: list[Delivery] = []
    size = 0
    for delivery in deliveries:
        length = len(delivery.value or b"")
        if part and size + length > limit:
            yield part
            part, size = [], 0
        part.append(delivery)
        size += length
    if part:
        yield part
