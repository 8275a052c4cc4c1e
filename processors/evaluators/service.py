"""The evaluator service: claims evaluations, lets rules or model servers answer them, and finishes them.

Rules decide whole batches in one transaction. What needs a model server becomes a task each, many at once; a heartbeat
keeps their claims. Nothing here is lost by dying: a claim whose lease ends is anybody's, answers that were paid for
are kept in `model_answers`, and finishing is one transaction.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

import aiohttp
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from processors.database import in_words, is_transient
from processors.evaluators import queue
from processors.evaluators.completion import Outcome, complete
from processors.evaluators.config import EvaluatorsConfig
from processors.evaluators.deciding import asks_a_model, by_model, by_rules, failed
from processors.evaluators.fingerprint import check_same_tokenizer
from processors.evaluators.inputs import Answered, load_answered, load_hint, load_turn
from processors.evaluators.llm_judge import Panel
from processors.evaluators.queue import Claim, Signal
from processors.evaluators.server import ModelServer, ServerFault
from processors.evaluators.teacher import TeacherFailed, score_under_hint
from processors.health import Health
from processors.linking import recipes_of
from processors.patience import Pause
from processors.retrying import FIRST_WAIT_S, LONGEST_WAIT_S
from processors.transactions import Transactions
from schemas.recipes import Recipe

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_DATABASE_THREADS = 4
"""Transactions at once: they take milliseconds, model answers seconds."""
_HEARTBEATS_A_LEASE = 3
"""Two may be lost before the claim is."""


class NotConfigured(ValueError):
    """A run asks for a model server that the service was not given: which run, which setting."""


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
            await EvaluatorService(config, transactions, http, health).run(stop)
    finally:
        transactions.close()


class EvaluatorService:
    """One evaluator process; see `run_evaluators`."""

    def __init__(
        self, config: EvaluatorsConfig, transactions: Transactions, http: aiohttp.ClientSession, health: Health
    ) -> None:
        self.config = config
        self._transactions = transactions
        self._health = health
        self._panel = Panel(ModelServer(config.judge, http), transactions) if config.judge else None
        self._teacher = ModelServer(config.teacher, http) if config.teacher else None
        self._policy = ModelServer(config.policy, http) if config.policy else None
        self._teacher_checked = False
        self._tasks: dict[asyncio.Task[None], Claim] = {}
        self._changed = asyncio.Event()
        self._batch: dict[Signal, int] = {"hint": 1, "reward": 1, "teacher": 0}
        self._turn_of: tuple[Signal, Signal] = ("hint", "reward")
        self._chance = random.Random()

    async def run(self, stop: asyncio.Event) -> None:
        """See `run_evaluators`."""
        self._require_servers(await self._persist(_recipes_of_active_runs))
        beating = asyncio.create_task(self._beat())
        checking = asyncio.create_task(self._check_teacher(stop))
        pause = Pause(stop, self._health, "evaluators")
        idle_s = self.config.poll_min_s
        try:
            while not stop.is_set():
                for task in (beating, checking):
                    if task.done():
                        task.result()
                self._changed.clear()
                try:
                    found = await self._round()
                    pause.succeeded()
                except SQLAlchemyError as err:
                    if not is_transient(err):
                        raise
                    await pause.after_fault(in_words(err))
                    continue
                if found:
                    idle_s = self.config.poll_min_s
                else:
                    await self._until_changed(stop, idle_s)
                    idle_s = min(idle_s * 1.5, self.config.poll_max_s)
        finally:
            for task in (beating, checking):
                task.cancel()
            await asyncio.gather(beating, checking, return_exceptions=True)
            await self._give_back()

    async def _round(self) -> int:
        """Claim what there is room for; returns how much was found. The teacher comes first, since a turn whose hint
        is accepted lacks nothing else."""
        found = 0
        if self._teacher and self._teacher_checked and (room := self._room()):
            found += await self._start("teacher", room)
        self._turn_of = self._turn_of[1], self._turn_of[0]  # or many slow hints would keep all rewards waiting
        for signal in self._turn_of:
            if room := self._room():
                found += await self._start(signal, max(room, self._batch[signal]))
        return found

    def _room(self) -> int:
        return max(0, self.config.concurrency - len(self._tasks))

    async def _start(self, signal: Signal, n: int) -> int:
        work = await self._transactions.run(self._claim, signal, n)
        self._require_servers(work.recipes)
        outcomes, asked = [], 0
        for claim in work.claims:
            answered, recipe = work.answered[claim.turn_id], work.recipes[claim.run]
            if claim.attempt > self.config.max_attempts:
                reason = f"given up: claimed {claim.attempt - 1} times, and no worker came back with an answer"
                outcomes.append(failed(claim, answered, reason))
            elif (decided := by_rules(claim, answered, recipe)) is not None:
                outcomes.append(decided)
            else:
                self._spawn(claim, answered, recipe)
                asked += 1
        # Rules are cheap, so where they decide everything the batches grow; a model's work is claimed as it fits.
        self._batch[signal] = 1 if asked else min(self.config.claim_batch, 2 * max(n, self._batch[signal]))
        if outcomes:
            await self._complete(outcomes)
        return len(work.claims)

    def _claim(self, connection: Connection, signal: Signal, n: int) -> Work:
        claims = queue.claim(connection, signal=signal, worker=self.config.worker, n=n, lease_s=self.config.lease_s)
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
        try:
            outcome, retry_reason = await self._answer(claim, answered, recipe)
        except ServerFault as fault:
            outcome, retry_reason = failed(claim, answered, str(fault)), str(fault)
        except SQLAlchemyError as err:
            if not is_transient(err):
                raise
            outcome, retry_reason = failed(claim, answered, in_words(err)), in_words(err)
        except Exception as err:  # a fault of ours on this turn: the others go on, and the turn says what it was
            log.exception("%s of turn %s", claim.signal, claim.turn_id)
            retry_reason = f"{type(err).__name__}: {err}"
            outcome = failed(claim, answered, retry_reason)
        if retry_reason is not None and claim.attempt < self.config.max_attempts:
            delay_s = queue.backoff_s(
                claim.attempt,
                base_s=self.config.backoff_base_s,
                max_s=self.config.backoff_max_s,
                chance=self._chance,
            )
            log.info("%s of turn %s again in %.1f s: %s", claim.signal, claim.turn_id, delay_s, retry_reason)
            await self._persist(queue.retry, claim, delay_s=delay_s, reason=retry_reason)
        else:
            await self._complete([outcome])

    async def _answer(self, claim: Claim, answered: Answered, recipe: Recipe) -> tuple[Outcome, str | None]:
        """The outcome, and why another try might better it (None: it is final)."""
        turn = await self._transactions.run(load_turn, claim.turn_id)
        if claim.signal != "teacher":
            assert self._panel is not None
            return await by_model(claim, answered, recipe, turn, self._panel, characters=self.config.judge_characters)
        assert self._teacher is not None
        hint = await self._transactions.run(load_hint, claim.run, claim.turn_id)
        if hint is None or recipe.teacher is None:
            return failed(claim, answered, "no_hint: the run has no accepted hint for the turn"), None
        try:
            scores = await score_under_hint(self._teacher, self._transactions, turn, hint, top_k=recipe.teacher.top_k)
        except TeacherFailed as fault:
            return failed(claim, answered, str(fault)), None
        return Outcome(claim=claim, session_id=answered.session_id, result=scores), None

    async def _complete(self, outcomes: list[Outcome]) -> None:
        lost = await self._persist(complete, outcomes)
        for claim in lost:
            log.warning("%s of turn %s was finished by another worker", claim.signal, claim.turn_id)

    async def _persist(self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Write what is known, however long the database is away: the claim's heartbeat is away with it, and if
        somebody else takes the claim meanwhile, then this writes nothing."""
        wait_s = FIRST_WAIT_S
        while True:
            try:
                return await self._transactions.run(work, *args, **kwargs)
            except SQLAlchemyError as err:
                if not is_transient(err):
                    raise
                self._health.waiting("evaluators", in_words(err))
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)

    def _require_servers(self, recipes: dict[str, Recipe]) -> None:
        for run, recipe in recipes.items():
            if self._panel is None and asks_a_model(recipe):
                raise NotConfigured(
                    f"run {run!r} asks a model for votes and no judge is configured: set HINDSTREAM_JUDGE__URL, "
                    "or set votes to 0 in its recipe"
                )
            if self._teacher is None and recipe.teacher is not None:
                raise NotConfigured(
                    f"run {run!r} asks for a teacher's scores and none is configured: set HINDSTREAM_TEACHER__URL"
                )

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

    async def _check_teacher(self, stop: asyncio.Event) -> None:
        """Let teacher work begin once both servers answer and tokenize alike."""
        pause = Pause(stop, self._health, "teacher")
        while self._teacher and self._policy and not stop.is_set():
            try:
                await check_same_tokenizer(self._policy, self._teacher)
                break
            except ServerFault as fault:
                await pause.after_fault(str(fault))
        if self._teacher:
            pause.succeeded()
        self._teacher_checked = True
        self._changed.set()

    async def _until_changed(self, stop: asyncio.Event, seconds: float) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (stop, self._changed)]
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


def _recipes_of_active_runs(connection: Connection) -> dict[str, Recipe]:
    active = connection.exec_driver_sql("SELECT run FROM runs WHERE ended_at IS NULL").scalars().all()
    return recipes_of(connection, active)
