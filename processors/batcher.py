"""The batcher: a run's oldest ready samples become one micro-batch, numbered without a gap.

Oldest is, in a live run, what became ready first; in a replay, what stands first on its log. A replay shows how old its
samples are and drops none for it: they are all from before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from processors.grouping import drop_uninformative, oldest_groups
from processors.health import Health
from processors.linking import recipes_of
from processors.pairing import DECIDED, drop_unpaired, oldest_pairs
from processors.patience import Pause
from processors.publishing import micro_batch, publish
from processors.replay.batching import decided_before
from processors.transactions import Transactions
from schemas.database import in_words, is_transient
from schemas.messages import MicroBatchPublished
from schemas.recipes import needs_of
from schemas.states import SAMPLE_TRANSITIONS, must_follow

log = logging.getLogger(__name__)

LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended('hindstream.batcher/' || %(run)s, 0))"
"""One batcher a run at a time, whichever process it lives in; the lock goes with the transaction."""

READ = "SELECT read FROM replays WHERE run = %(run)s"
"""Until a replay has read its log, a candidate of a group may not be known yet: which are depends on the moment."""

IN_FLIGHT = "SELECT count(*) FROM micro_batches WHERE run = %(run)s AND state = 'published'"

NEWEST = "SELECT max(version) FROM weight_versions WHERE policy = %(policy)s"

DROP_STALE = """
UPDATE samples s SET state = 'dropped', drop_reason = 'stale', updated_at = now(), staleness = %(newest)s - old.version,
       drop_detail = format('oldest token by version %%s, newest weights %%s: %%s behind, at most %%s allowed',
                            old.version, %(newest)s::int, %(newest)s - old.version, %(bound)s::int)
FROM (SELECT turn_id, oldest_version AS version FROM turns) old
WHERE s.run = %(run)s AND s.state = 'ready' AND old.turn_id = s.turn_id
  AND %(newest)s - old.version > %(bound)s
"""

OLDEST = """
SELECT sample_id, content_digest FROM samples
WHERE run = %(run)s AND state = 'ready'
  AND (%(before)s::bigint IS NULL OR replay_order < %(before)s)
ORDER BY replay_order, ready_at, sample_id
LIMIT %(size)s
FOR UPDATE
"""


@dataclass(frozen=True, kw_only=True)
class BatcherConfig:
    """How the batcher works."""

    max_in_flight: int = 1
    """Micro-batches of a run that the learner has not committed yet. Each further one makes the samples in it a
    version staler by the time they are used; 1 costs the learner one look at the queue a step."""
    poll_s: float = 0.1
    """Between two looks for runs with enough ready samples: what a full micro-batch waits at worst."""


def next_micro_batch(connection: Connection, run: str, *, max_in_flight: int) -> MicroBatchPublished | None:
    """Make the run's next micro-batch, in the caller's transaction: its row, its samples in order, and the outbox
    row that announces it. The same ready samples of a replay always make the same micro-batches.

    None where there are too few ready samples, where `max_in_flight` micro-batches wait for the learner, or where
    another batcher is at it. Ready samples beyond the recipe's staleness bound, measured from the policy's newest
    weight version, are dropped as `stale` first; the learner measures again when it uses them. Recipes that compare
    the candidates of a prompt get whole groups (`processors.grouping`), at least as many samples as the recipe says.
    """
    if not connection.exec_driver_sql(LOCK, {"run": run}).scalar_one():
        return None
    if connection.exec_driver_sql(IN_FLIGHT, {"run": run}).scalar_one() >= max_in_flight:
        return None
    recipe = recipes_of(connection, [run])[run]
    row = connection.exec_driver_sql(
        "SELECT kind, policy, recipe_digest, coalesce((SELECT max(seq) FROM micro_batches WHERE run = %(run)s), 0) + 1 "
        "AS seq FROM runs WHERE run = %(run)s",
        {"run": run},
    ).one()
    if row.kind == "live":
        if not needs_of(recipe).text:  # no version is behind where no log-prob of it is read
            _drop_stale(connection, run, row.policy, recipe.batch.max_staleness)
        before = None
    else:
        before = decided_before(connection, run)
    chosen: Sequence[Any]
    if needs_of(recipe).pairs:
        if row.kind == "replay" and not connection.exec_driver_sql(DECIDED, {"run": run}).scalar_one():
            return None
        must_follow(SAMPLE_TRANSITIONS, "ready", "dropped")
        drop_unpaired(connection, run, live=row.kind == "live")
        chosen = oldest_pairs(connection, run, recipe.batch.size, live=row.kind == "live")
    elif needs_of(recipe).groups:
        if row.kind == "replay" and not connection.exec_driver_sql(READ, {"run": run}).scalar_one():
            return None
        must_follow(SAMPLE_TRANSITIONS, "ready", "dropped")
        drop_uninformative(connection, run, recipe, before)
        chosen = oldest_groups(connection, run, recipe, before)
    else:
        chosen = connection.exec_driver_sql(OLDEST, {"run": run, "size": recipe.batch.size, "before": before}).all()
    if len(chosen) < recipe.batch.size:
        return None
    message = micro_batch(run, row.policy, row.recipe_digest, row.seq, chosen)
    publish(connection, [message])
    return message


def runs_with_ready_samples(connection: Connection) -> Sequence[str]:
    """Live runs that may have a micro-batch to make. Ended ones too: what they took in is still trained."""
    return (
        connection.exec_driver_sql(
            "SELECT run FROM runs r WHERE kind = 'live' "
            "AND EXISTS (SELECT 1 FROM samples s WHERE s.run = r.run AND s.state = 'ready') ORDER BY run"
        )
        .scalars()
        .all()
    )


async def run_batcher(config: BatcherConfig, engine: Engine, stop: asyncio.Event, health: Health) -> None:
    """Make micro-batches until `stop`; a database that is away is waited for.

    Raises:
        SQLAlchemyError: the database refuses for a reason that does not pass.
    """
    transactions = Transactions(engine, threads=1, name="batcher")
    pause = Pause(stop, health, "batcher")
    try:
        while not stop.is_set():
            try:
                for run in await transactions.run(runs_with_ready_samples):
                    made = await transactions.run(next_micro_batch, run, max_in_flight=config.max_in_flight)
                    if made is not None:
                        log.info("run %s: micro-batch %d of %d samples", run, made.seq, len(made.sample_ids))
                pause.succeeded()
            except SQLAlchemyError as err:
                if not is_transient(err):
                    raise
                await pause.after_fault(in_words(err))
            await pause.wait(config.poll_s)
    finally:
        transactions.close()


def _drop_stale(connection: Connection, run: str, policy: str, bound: int) -> None:
    newest = connection.exec_driver_sql(NEWEST, {"policy": policy}).scalar_one()
    if newest is not None:  # else the learner has not even announced the base model, and nothing can be behind it
        must_follow(SAMPLE_TRANSITIONS, "ready", "dropped")
        connection.exec_driver_sql(DROP_STALE, {"run": run, "newest": newest, "bound": bound})
