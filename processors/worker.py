"""The worker: the roles that it was given, side by side in one process, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator

from sqlalchemy import Connection, Engine

from processors.batcher import run_batcher
from processors.config import ROLES, WorkerConfig
from processors.evaluators.service import run_evaluators
from processors.flood import FloodGate
from processors.health import Health
from processors.idle import run_idle
from processors.letter_retries import run_letters
from processors.relay import run_relay
from processors.retrying import until_done
from processors.runs import ensure_run
from processors.services import Service, run_together
from processors.transactions import Transactions
from schemas.claim_check import DirectoryBlobStore
from schemas.database import in_words, is_transient, make_engine

EXIT_OK = 0
EXIT_UNHEALTHY = 3
"""A role could not go on. Nothing is lost: what was not committed is read or claimed again by the next worker."""

_GRACE_S = 20.0
"""A stop lets an evaluator hear the answer that it waits for and an agent commit its batch. An answer that takes longer
is asked again by another worker, when the claim's lease ends."""
_HARD_STOP_S = 45.0
"""More than every bounded wait of a stop together. A worker that still lives then hangs in a thread that nobody can
interrupt while whoever stops it waits: it ends itself, as a crash would."""

_log = logging.getLogger(__name__)


def run_worker(config: WorkerConfig) -> int:
    """Run until SIGTERM or SIGINT, or until a role fails. Blocks; returns the exit code.

    Makes the run if it is not there yet. The database and the broker may be away, at the start too: they are waited
    for.

    Raises:
        WorkerMisconfigured: its roles and addresses do not go together.
        RunMismatch: the run exists and is another.
        InvalidRecipe: the recipe cannot work.
        DBAPIError: the database refuses for a reason that does not pass, such as a wrong password.
    """
    config.check()
    return asyncio.run(_main(config))


def services_of(config: WorkerConfig, engine: Engine, health: Health) -> dict[str, Service]:
    """What each role of the worker runs. Faust is loaded only for `agents`."""
    evaluators = config.evaluators
    services: dict[str, Service] = {
        "batcher": lambda stop: run_batcher(config.batcher, engine, stop, health),
        "relay": lambda stop: run_relay(config.relay, engine, stop, health),
        "idle": lambda stop: run_idle(config.idle, engine, stop, health),
    }
    if evaluators is not None:
        services["evaluators"] = lambda stop: run_evaluators(evaluators, engine, stop, health)
    letters = config.letters
    if letters is not None:
        services["letters"] = lambda stop: run_letters(letters, engine, stop, health)
    if "agents" in config.roles:
        services["agents"] = _agents(config, engine, health)
    return {role: services[role] for role in ROLES if role in config.roles and role in services}


async def _main(config: WorkerConfig) -> int:
    stop, health = asyncio.Event(), Health()
    engine = make_engine(config.database_url, pool_size=config.pool_size, application_name="hindstream worker")
    try:
        with _stopped_by_signals(stop):
            if not await _run_exists(config, engine, stop, health):
                return EXIT_OK
            _log.info("run %s, roles %s", config.run.run, ", ".join(config.roles))
            services = services_of(config, engine, health)
            well = await run_together(services, stop, grace_s=_GRACE_S, health=health)
            _log.info("stopped; %s", health.in_words() or "nothing to report")
            return EXIT_OK if well else EXIT_UNHEALTHY
    finally:
        engine.dispose()


async def _run_exists(config: WorkerConfig, engine: Engine, stop: asyncio.Event, health: Health) -> bool:
    """Have the run; False if the stop came while the database was away."""
    transactions = Transactions(engine, threads=1, name="run")

    def make(connection: Connection) -> bool:
        run = config.run
        return ensure_run(connection, run=run.run, kind="live", policy=run.policy, recipe=run.recipe)

    making = asyncio.ensure_future(
        until_done(lambda: transactions.run(make), transient=is_transient, health=health, part="run", in_words=in_words)
    )
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({making, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not making.done():
            return False
        if making.result():
            _log.info("run %s begins, recipe %s", config.run.run, config.run.recipe.name)
        return True
    finally:
        making.cancel()
        stopping.cancel()
        transactions.close()


def _agents(config: WorkerConfig, engine: Engine, health: Health) -> Service:
    from processors.agents import agents_service
    from processors.recorder import Recorder

    recorder = Recorder(
        engine,
        blobs=DirectoryBlobStore(config.recorder.blob_dir),
        gate=FloodGate(
            config.recorder.dead_letter_limit, config.recorder.dead_letter_window, config.recorder.dead_letter_share
        ),
        health=health,
    )
    record = agents_service(config.bootstrap_servers, config.recorder, recorder, health)

    async def run(stop: asyncio.Event) -> None:
        try:
            await record(stop)
        finally:
            await asyncio.to_thread(recorder.close)
            _log.info("recorded: %s", recorder.totals)

    return run


@contextlib.contextmanager
def _stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set `stop`; a second one, or a stop that hangs, ends the process at once."""
    loop = asyncio.get_running_loop()
    watchdog: list[threading.Timer] = []

    def on_signal(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        _log.info("%s: finishing what is in hand", signal.Signals(number).name)
        timer = threading.Timer(_HARD_STOP_S, os._exit, args=(128 + number,))
        timer.daemon = True
        timer.start()
        watchdog.append(timer)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        for timer in watchdog:
            timer.cancel()
