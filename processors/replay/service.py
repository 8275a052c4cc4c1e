"""A replay from its log to signals, micro-batches or weights; interrupted anywhere, it goes on from there."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from processors.dead_letters import Delivery
from processors.evaluators.config import EvaluatorsConfig
from processors.evaluators.recorded import Models
from processors.evaluators.service import run_evaluators
from processors.health import Health
from processors.linking import link_unfinished
from processors.patience import Pause
from processors.relay import RelayConfig, run_relay
from processors.replay import progress
from processors.replay.micro_batches import next_micro_batches
from processors.replay.opening import Opened
from processors.replay.pacing import Pace
from processors.replay.progress import Counts, Offsets, Place, Range
from processors.replay.selection import Selection
from processors.replay.taking import Numbered, prepare, take
from processors.runs import ensure_run
from processors.services import Service, run_together
from processors.settling import settle_read
from processors.transactions import Transactions
from schemas.claim_check import BlobStore
from schemas.database import in_words, is_transient, make_engine
from schemas.recipes import Recipe

log = logging.getLogger(__name__)

T = TypeVar("T")

_GRACE_S = 20.0
_LOOK_S = 0.1
"""Between two looks at what is left to do."""
_LOOK_SHARE = 10.0
"""A look counts evaluations, which takes the longer the more there are: at most a tenth of the time is spent on it."""
_WORTH_IT = 1_000
"""Samples put into micro-batches at once. Where there were fewer, more are waited for: a transaction costs the same
for one micro-batch as for ten."""
_CONNECTIONS = 8
_BATCH_BYTES = 16 * 1024 * 1024
"""Of records in one transaction: three batches are held at once, and a record may have a megabyte."""
_COLLECT_AFTER = 200_000
"""New objects between two looks for cycles, of which there are hardly any. At Python's 700 a fifth of the time went
into looking at a batch's rows again and again; this many take some tens of megabytes."""


class Log(Protocol):
    """Where a replay reads: a range of a topic, or files."""

    @property
    def name(self) -> str:
        """The topic, or `file:` and what tells the files from others."""
        ...

    def bounds(self, selection: Selection) -> tuple[Offsets, Offsets]:
        """First offset, and offset after the last, of each partition."""
        ...

    def read(
        self, starts: Mapping[int, int], ends: Mapping[int, int], stop: threading.Event
    ) -> Iterator[tuple[Delivery, float]]:
        """Deliveries in an order that is always the same, each with its time in seconds by the log's clock."""
        ...


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """One replay.

    `evaluators` None: nobody is asked, as for a recipe whose signals rules can make. `relay` is needed to train.
    `speed`: how much faster than it was recorded the log is read; None: as fast as it goes. `batch`: records read in
    one transaction.
    """

    run: str
    policy: str
    recipe: Recipe
    selection: Selection
    stop_after: Literal["rewards", "samples", "weights"]
    database_url: str = field(repr=False)
    evaluators: EvaluatorsConfig | None
    relay: RelayConfig | None
    blobs: BlobStore | None = None
    speed: float | None = None
    batch: int = 2048


@dataclass(frozen=True)
class Outcome:
    """`finished`: all that was asked for is done; else it was stopped, or a part could not go on (`fault`)."""

    counts: Counts
    finished: bool
    fault: str | None


def open_replay(config: ReplayConfig, source: Log) -> bool:
    """Have the replay's run and its range. Returns whether it was made now; else it goes on where it stopped.

    Raises:
        RunMismatch: a run of this name is live, or has another recipe or policy.
        ReplayMismatch: it was begun with another log or selection.
        InvalidRecipe: the recipe cannot work.
        ValueError: the selection selects nothing.
    """
    config.selection.check()
    engine = make_engine(config.database_url, pool_size=1, application_name="hindstream replay")
    try:
        starts, ends = source.bounds(config.selection)
        whole = Range(log=source.name, starts=starts, ends=ends, selection=config.selection)
        with engine.begin() as connection:
            ensure_run(connection, run=config.run, kind="replay", policy=config.policy, recipe=config.recipe)
            return progress.begin(connection, config.run, whole, config.stop_after)
    finally:
        engine.dispose()


async def run_replay(
    config: ReplayConfig, source: Log, stop: asyncio.Event, observe: Callable[[Counts], None] = lambda _: None
) -> Outcome:
    """Read, evaluate and batch until all is done or `stop`. `observe` is told the counts a few times a second.

    Call `open_replay` first.

    Raises:
        SQLAlchemyError: the database refuses for a reason that does not pass.
    """
    health = Health()
    engine = make_engine(config.database_url, pool_size=_CONNECTIONS, application_name="hindstream replay")
    ended = asyncio.Event()
    replay = _Replay(config, source, engine, ended, health, observe)
    services: dict[str, Service] = {"reading": replay.read, "progress": replay.watch}
    if config.evaluators is not None:
        evaluators = config.evaluators
        services["evaluators"] = lambda until: run_evaluators(evaluators, engine, until, health)
    if config.stop_after != "rewards":
        services["batching"] = replay.batch
    if config.stop_after == "weights" and config.relay is not None:
        relay = config.relay
        services["relay"] = lambda until: run_relay(relay, engine, until, health)
    stopping = asyncio.create_task(_pass_on(stop, ended))
    collected = gc.get_threshold()
    gc.set_threshold(_COLLECT_AFTER, *collected[1:])
    try:
        well = await run_together(services, ended, grace_s=_GRACE_S, health=health)
        with engine.connect() as connection:
            counts = progress.counts(connection, config.run)
        return Outcome(counts, replay.finished, None if well else health.in_words())
    finally:
        gc.set_threshold(*collected)
        stopping.cancel()
        engine.dispose()


class _Replay:
    """The parts of one replay; each runs until `ended` is set."""

    def __init__(
        self,
        config: ReplayConfig,
        source: Log,
        engine: Engine,
        ended: asyncio.Event,
        health: Health,
        observe: Callable[[Counts], None],
    ) -> None:
        self._config, self._source, self._engine, self._ended = config, source, engine, ended
        self._health, self._observe = health, observe
        self.finished = False

    async def read(self, ended: asyncio.Event) -> None:
        """Take the range; then wait for the others."""
        halt = threading.Event()
        reading = asyncio.create_task(asyncio.to_thread(self._read, halt))
        waiting = asyncio.create_task(ended.wait())
        await asyncio.wait({reading, waiting}, return_when=asyncio.FIRST_COMPLETED)
        halt.set()
        await reading
        await waiting

    async def batch(self, ended: asyncio.Event) -> None:
        """Make micro-batches as the decided turns suffice for them."""
        transactions = Transactions(self._engine, threads=1, name="replay-batching")
        pause = Pause(ended, self._health, "batching")
        try:
            while not ended.is_set():
                made = 0
                try:
                    made = await transactions.run(next_micro_batches, self._config.run, self._config.recipe)
                    pause.succeeded()
                except SQLAlchemyError as err:
                    if not is_transient(err):
                        raise
                    await pause.after_fault(in_words(err))
                if made * self._config.recipe.batch.size < _WORTH_IT:
                    await pause.wait(_LOOK_S)
        finally:
            transactions.close()

    async def watch(self, ended: asyncio.Event) -> None:
        """Tell how far it is, and end it when nothing is left."""
        transactions = Transactions(self._engine, threads=1, name="replay-progress")
        pause = Pause(ended, self._health, "progress")
        try:
            while not ended.is_set():
                began = time.monotonic()
                try:
                    counts, done = await transactions.run(self._look)
                    pause.succeeded()
                except SQLAlchemyError as err:
                    if not is_transient(err):
                        raise
                    await pause.after_fault(in_words(err))
                    continue
                self._observe(counts)
                if done:
                    self.finished = True
                    self._ended.set()
                    return
                await pause.wait(max(_LOOK_S, _LOOK_SHARE * (time.monotonic() - began)))
        finally:
            transactions.close()

    def _look(self, connection: Connection) -> tuple[Counts, bool]:
        # Each statement sees what was committed before it. So first whether anything can be added: counts of an earlier
        # moment might lack the micro-batches that were made since.
        config = self._config
        _, place = progress.range_of(connection, config.run)
        done = place.read
        if config.stop_after != "rewards":
            done = done and _settled(connection, config)
        counts = progress.counts(connection, config.run)
        if config.stop_after == "rewards":
            done = done and counts.rewards_open == 0
        if config.stop_after == "weights":
            done = done and counts.trained == counts.batched
        if done:
            progress.finish(connection, config.run)
        return counts, done

    def _read(self, halt: threading.Event) -> None:
        """Blocks until the range is taken or `halt`; a database that is away is waited for."""
        with self._engine.connect() as connection:
            whole, place = progress.range_of(connection, self._config.run)
        if place.read:
            return
        with (
            ThreadPoolExecutor(1, "replay-preparing") as preparer,
            ThreadPoolExecutor(1, "replay-taking") as taker,
        ):
            self._read_from(whole, place, halt, preparer, taker)
        if not halt.is_set():
            self._in_transaction(self._end_reading, halt)

    def _read_from(
        self,
        whole: Range,
        place: Place,
        halt: threading.Event,
        preparer: ThreadPoolExecutor,
        taker: ThreadPoolExecutor,
    ) -> None:
        """One batch is read while the one before is prepared and the one before that is taken; each of these is done
        in the log's order."""
        pace = Pace(self._config.speed, halt)
        next_ = dict(place.next)
        done = sum(next_.values()) - sum(whole.starts.values())
        batch: list[Numbered] = []
        size = 0
        ahead: deque[Future[None]] = deque()

        def hand_on() -> None:
            if len(ahead) > 1:
                ahead.popleft().result()
            prepared = preparer.submit(self._prepare, batch, halt)
            before = ahead[-1] if ahead else None
            ahead.append(taker.submit(self._take, before, prepared, dict(next_), halt))

        for delivery, seconds in self._source.read(place.next, whole.ends, halt):
            late = not pace.reached(seconds)
            full = len(batch) >= self._config.batch or size >= _BATCH_BYTES
            if batch and (late or full):  # what came before must not wait for the pace
                hand_on()
                batch, size = [], 0
            if late:
                pace.wait(seconds)
            batch.append(Numbered(delivery, done))
            size += len(delivery.value or b"")
            done += 1
            next_[delivery.partition] = delivery.offset + 1
            if halt.is_set():
                break
        if batch and not halt.is_set():
            hand_on()
        for taking in ahead:
            taking.result()

    def _prepare(self, batch: list[Numbered], halt: threading.Event) -> Opened | None:
        config, log_name = self._config, self._source.name
        return self._in_transaction(
            lambda connection: prepare(
                connection,
                config.run,
                config.recipe,
                batch,
                config.selection,
                log=log_name,
                blobs=config.blobs,
                models=None if config.evaluators is None else Models.of(config.evaluators),
            ),
            halt,
        )

    def _take(
        self, before: Future[None] | None, prepared: Future[Opened | None], next_: Offsets, halt: threading.Event
    ) -> None:
        if before is not None:
            before.result()  # where a batch failed, the ones after it must not be taken for it too
        opened = prepared.result()
        if opened is not None:
            self._in_transaction(lambda connection: take(connection, self._config.run, opened, next_), halt)

    def _end_reading(self, connection: Connection) -> None:
        link_unfinished(connection, self._config.run)
        progress.mark_read(connection, self._config.run)
        settle_read(connection, self._config.run)

    def _in_transaction(self, work: Callable[[Connection], T], halt: threading.Event) -> T | None:
        """What `work` gives; None where `halt` is set before it is done."""
        wait = 0.2
        while not halt.is_set():
            try:
                with self._engine.begin() as connection:
                    made = work(connection)
            except SQLAlchemyError as err:
                if not is_transient(err):
                    raise
                self._health.waiting("reading", in_words(err))
                halt.wait(wait)
                wait = min(5.0, 2 * wait)
            else:
                self._health.ok("reading")
                return made
        return None


def _settled(connection: Connection, config: ReplayConfig) -> bool:
    """Every sample is decided and no further micro-batch can be made of them."""
    row = connection.exec_driver_sql(_LEFT, {"run": config.run}).one()
    return bool(row.pending == 0 and row.ready < config.recipe.batch.size)


_LEFT = """
SELECT count(*) FILTER (WHERE state = 'pending') AS pending, count(*) FILTER (WHERE state = 'ready') AS ready
FROM samples WHERE run = %(run)s AND state IN ('pending', 'ready')
"""


async def _pass_on(stop: asyncio.Event, ended: asyncio.Event) -> None:
    await stop.wait()
    ended.set()
