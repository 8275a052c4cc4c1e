"""The role `letters`: replays what the policy retries by itself, and deletes what was settled long ago."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from kafka.errors import KafkaError
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from processors.health import Health
from processors.letters import WORKER, LetterPolicy, due, purge_settled, replay
from processors.patience import Pause
from processors.transactions import Transactions
from schemas.database import in_words, is_transient
from schemas.publish import AckedPublisher, PublishFailed
from schemas.topics import AGENT_EVENTS

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LettersConfig:
    """What is replayed, where to, and how often it is looked for. `topic` is the only one whose letters are replayed by
    themselves: what a replay of files could not read did not come from a broker."""

    bootstrap_servers: str
    policy: LetterPolicy
    topic: str = AGENT_EVENTS
    every_s: float = 30.0
    """The first replay is minutes after the letter, so half a minute more does not matter."""
    timeout_s: float = 15.0
    """The longest wait for the broker, whose letters are locked meanwhile."""


async def run_letters(config: LettersConfig, engine: Engine, stop: asyncio.Event, health: Health) -> None:
    """Look for letters until `stop`; a database or broker that is away is waited for.

    Raises:
        SQLAlchemyError: the database refuses for a reason that does not pass.
    """
    transactions = Transactions(engine, threads=1, name="letters")
    pause = Pause(stop, health, "letters")
    try:
        while not stop.is_set():
            try:
                await transactions.run(_look, config)
                pause.succeeded()
            except (PublishFailed, KafkaError) as err:
                await pause.after_fault(str(err) or type(err).__name__)
            except SQLAlchemyError as err:
                if not is_transient(err):
                    raise
                await pause.after_fault(in_words(err))
            else:
                await pause.wait(config.every_s)
    finally:
        await asyncio.to_thread(transactions.close)


def _look(connection: Connection, config: LettersConfig) -> None:
    if (gone := purge_settled(connection, config.policy)) > 0:
        log.info("%d dead letters, settled over %d days ago, are deleted", gone, config.policy.keep_days)
    ids = due(connection, config.policy, config.topic)
    if not ids:
        return
    with AckedPublisher(
        config.bootstrap_servers, client_id="hindstream-letters", timeout_s=config.timeout_s
    ) as publisher:
        for settled in replay(connection, publisher, ids, by=WORKER, policy=config.policy):
            log.info("dead letter %d: %s", settled.dead_letter_id, settled.words)
