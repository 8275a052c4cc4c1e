"""The evaluator service: claims evaluations, lets rules or model servers answer them, and finishes them.

Rules decide whole batches in one transaction. What needs a model server becomes a task each, many at once; a heartbeat
keeps their claims. Nothing here is lost by dying: a claim whose lease ends is anybody's, answers that were paid for
are kept in `model_answers`, and finishing is one transaction.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from dataclasses import dataclass

import aiohttp
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from processors.evaluators import queue
from processors.evaluators.config import EvaluatorsConfig
from processors.evaluators.deciding import by_rules, failed
from processors.evaluators.inputs import Answered, load_answered
from processors.evaluators.once import about_session
from processors.evaluators.queue import Claim, Signal
from processors.evaluators.server import Overloaded, ServerFault
from processors.evaluators.servers import Servers
from processors.evaluators.writer import Writer
from processors.health import Health
from processors.linking import recipes_of
from processors.patience import Pause
from processors.transactions import Transactions
from schemas.database import in_words, is_transient
from schemas.recipes import Recipe
from schemas.text import sanitise_text

log = logging.getLogger(__name__)

_DATABASE_THREADS = 4
"""Transactions at once: they take milliseconds, model answers seconds."""
_AHEAD = 4
"""One in so many is claimed beyond what a server takes at once: it is at the server's door when a slot falls free, and
the slot stays empty for no longer than a request's way. More would keep work from others that are idle."""
_PAUSED_LOOK_S = 2.0
"""While a server takes nothing, its work is looked through for what rules can decide; once a look finds none, this
often. A look postpones up to a batch."""
_HEARTBEATS_A_LEASE = 3
"""Two may be lost before the claim is."""


@dataclass(frozen=True)
class Work:
    """Claims with all that rules need to decide them."""

    claims: list[Claim]
    answered: dict[str, Answered]
    recipes: dict[str, Recipe]


async def run_evaluators(config: EvaluatorsConfig, engine: Engine, stop: asyncio.Event, health: Health) -> None:
    """Evaluate until `stop`, then give back what is unfinished. A database or model server that is away is waited
    for.

    Raises:
        NotConfigured: a run needs a judge or teacher and none is configured.
        TokenizerMismatch: the teacher's tokenizer is not the policy's.
        SQLAlchemyError: the database refuses for a reason that does not pass.
    """
    transactions = Transactions(engine, threads=_DATABASE_THREADS, name="evaluators")
    try:
        async with aiohttp.ClientSession() as http:
            servers = Servers(config, transactions, http, health)
            await EvaluatorService(config, transactions, servers, stop, health).run()
    finally:
        await asyncio.to_thread(transactions.close)


class EvaluatorService:
    """One evaluator process; see `run_evaluators`."""

    def __init__(
        self,
        config: EvaluatorsConfig,
        transactions: Transactions,
        servers: Servers,
        stop: asyncio.Event,
        health: Health,
    ) -> None:
        self.config = config
        self._transactions, self._servers, self._stop, self._health = transactions, servers, stop, health
        self._writer = Writer(transactions, health, stop)
        self._tasks: dict[asyncio.Task[None], Claim] = {}
        self._changed = asyncio.Event()
        self._batch: dict[Signal, int] = {"hint": 1, "reward": 1, "teacher": 0}
        self._turn_of: tuple[Signal, Signal] = ("hint", "reward")
        self._look_again: dict[Signal, float] = {}
        self._chance = random.Random()

    async def run(self) -> None:
        """See `run_evaluators`."""
        background = [
            asyncio.create_task(self._beat()),
            asyncio.create_task(self._servers.check_teacher(Pause(self._stop, self._health, "teacher"))),
        ]
        pause = Pause(self._stop, self._health, "evaluators")
        idle_s = self.config.poll_min_s
        checked = False
        try:
            while not self._stop.is_set():
                for task in background:
                    if task.done():
                        task.result()
                self._changed.clear()
                try:
                    if not checked:
                        self._servers.require(await self._transactions.run(_recipes_of_active_runs, self.config.runs))
                        checked = True
                    found = await self._round()
                    pause.succeeded()
                except SQLAlchemyError as err:
                    if not is_transient(err):
                        raise
                    await pause.after_fault(in_words(err))
                    continue
                idle_s = self.config.poll_min_s if found else min(idle_s * 1.5, self.config.poll_max_s)
                if not found:
                    await self._until_changed(idle_s)
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await self._give_back()

    async def _round(self) -> int:
        """Claim what there is room for; returns how much was found. The teacher comes first, since a turn whose hint
        is accepted lacks nothing else."""
        found = 0
        wanted = self.config.signals
        if "teacher" in wanted and self._servers.teacher_ready and (room := self._room("teacher")):
            found += await self._start("teacher", room)
        self._turn_of = self._turn_of[1], self._turn_of[0]  # or many slow hints would keep all rewards waiting
        for signal in self._turn_of:
            if signal in wanted and (room := self._room(signal)):
                found += await self._start(signal, max(room, self._batch[signal]))
        return found

    def _room(self, signal: Signal) -> int:
        """How many evaluations of `signal` may be claimed: as many as this process holds at most, and as its server
        takes now, with a few ahead."""
        most = self.config.concurrency
        room = most + math.ceil(most / _AHEAD) - len(self._tasks)
        limit = self._servers.limit_of(signal)
        if limit is None:
            return max(0, room)
        if limit.closed:  # what rules can decide goes on
            return self.config.claim_batch if time.monotonic() >= self._look_again.get(signal, 0.0) else 0
        there = sum(self._servers.limit_of(claim.signal) is limit for claim in self._tasks.values())
        return max(0, min(room, limit.at_once + math.ceil(limit.at_once / _AHEAD) - there))

    async def _start(self, signal: Signal, n: int) -> int:
        work = await self._transactions.run(self._claim, signal, n)
        self._servers.require(work.recipes)
        limit = self._servers.limit_of(signal)
        outcomes, asked, postponed = [], 0, []
        for claim in work.claims:
            answered, recipe = work.answered[claim.turn_id], work.recipes[claim.run]
            if claim.attempt > self.config.max_attempts:
                reason = f"given up: claimed {claim.attempt - 1} times, and no worker came back with an answer"
                outcomes.append(failed(claim, answered.session_id, reason))
            elif (decided := by_rules(claim, answered, recipe)) is not None:
                outcomes.append(decided)
            elif limit is not None and limit.closed and not claim.replayed:  # a replay may need no server at all
                postponed.append(claim)
            else:
                self._spawn(claim, answered, recipe)
                asked += 1
        # Rules are cheap, so where they decide everything the batches grow; a model's work is claimed as it fits.
        self._batch[signal] = 1 if asked else min(self.config.claim_batch, 2 * max(n, self._batch[signal]))
        if postponed:
            assert limit is not None
            if not outcomes:
                self._look_again[signal] = time.monotonic() + _PAUSED_LOOK_S
            reason = f"its server has no room: {limit.figures().in_words()}"
            await self._writer.persist(queue.postpone, postponed, delay_s=limit.pause_s, reason=reason)
        if outcomes:
            await self._writer.complete(outcomes)
        return len(work.claims) - len(postponed)

    def _claim(self, connection: Connection, signal: Signal, n: int) -> Work:
        worker, lease_s = self.config.worker, self.config.lease_s
        claims = queue.claim(connection, signal=signal, worker=worker, n=n, lease_s=lease_s, runs=self.config.runs)
        if not claims:
            return Work([], {}, {})
        answered = load_answered(connection, (claim.turn_id for claim in claims))
        return Work(claims, answered, recipes_of(connection, (claim.run for claim in claims)))

    def _spawn(self, claim: Claim, answered: Answered, recipe: Recipe) -> None:
        task = asyncio.create_task(self._work(claim, answered, recipe))
        self._tasks[task] = claim
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        claim = self._tasks.pop(task)
        self._changed.set()
        if not task.cancelled() and (fault := task.exception()) is not None:
            log.error("%s of turn %s: the claim is left to its lease", claim.signal, claim.turn_id, exc_info=fault)

    async def _work(self, claim: Claim, answered: Answered, recipe: Recipe) -> None:
        retry_reason: str | None
        about_session.set(answered.session_id)
        try:
            outcome, retry_reason = await self._servers.answer(claim, answered, recipe)
        except Overloaded as busy:
            log.info("%s of turn %s waits %.1f s: %s", claim.signal, claim.turn_id, busy.pause_s, busy)
            await self._writer.persist(queue.postpone, [claim], delay_s=busy.pause_s, reason=sanitise_text(str(busy)))
            return
        except Exception as err:
            if isinstance(err, ServerFault):
                retry_reason = str(err)
            elif is_transient(err):
                retry_reason = in_words(err)
            else:  # a fault of ours on this turn: the others go on, and the turn says what it was
                log.exception("%s of turn %s", claim.signal, claim.turn_id)
                retry_reason = f"{type(err).__name__}: {err}"
            outcome = failed(claim, answered.session_id, retry_reason)
        if retry_reason is None or claim.attempt >= self.config.max_attempts:
            await self._writer.complete([outcome])
            return
        delay_s = queue.backoff_s(
            claim.attempt, base_s=self.config.backoff_base_s, max_s=self.config.backoff_max_s, chance=self._chance
        )
        log.info("%s of turn %s again in %.1f s: %s", claim.signal, claim.turn_id, delay_s, retry_reason)
        await self._writer.persist(queue.retry, claim, delay_s=delay_s, reason=sanitise_text(retry_reason))

    async def _beat(self) -> None:
        """Prolong the claims of running tasks; a task whose claim was lost is cancelled, since nobody needs it."""
        while True:
            await asyncio.sleep(self.config.lease_s / _HEARTBEATS_A_LEASE)
            mine = dict(self._tasks)
            if not mine:
                continue
            try:
                held = await self._transactions.run(queue.extend, mine.values(), self.config.lease_s)
            except SQLAlchemyError as err:
                if not is_transient(err):
                    raise
                log.warning("no heartbeat: %s", in_words(err))
                continue
            for task, claim in mine.items():
                if claim not in held and not task.done():
                    log.warning("%s of turn %s: the claim was lost", claim.signal, claim.turn_id)
                    task.cancel()

    async def _until_changed(self, seconds: float) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (self._stop, self._changed)]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _give_back(self) -> None:
        mine = dict(self._tasks)
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)
        try:
            await self._transactions.run(queue.release, list(mine.values()))
        except SQLAlchemyError as err:
            log.warning("claims are left to their lease: %s", in_words(err))


def _recipes_of_active_runs(connection: Connection, only: tuple[str, ...] | None) -> dict[str, Recipe]:
    if only is not None:
        return recipes_of(connection, only)
    active = connection.exec_driver_sql("SELECT run FROM runs WHERE ended_at IS NULL").scalars().all()
    return recipes_of(connection, active)
