"""A replay's micro-batches: the ones that a batcher would make one by one, many in one transaction."""

from __future__ import annotations

from sqlalchemy import Connection

from processors.batcher import LOCK, next_micro_batch
from processors.publishing import micro_batch, publish
from processors.replay.batching import decided_before
from schemas.recipes import Recipe, needs_of

_UNLIMITED = 1_000_000_000
"""Micro-batches that may wait for the learner: a replay measures no staleness, so they may all be made ahead."""
_SAMPLES = 4_096
"""Most samples put into micro-batches in one transaction: some 100 ms, and a fraction of a megabyte."""

_RUN = """
SELECT policy, recipe_digest, coalesce((SELECT max(seq) FROM micro_batches WHERE run = %(run)s), 0) AS newest
FROM runs WHERE run = %(run)s
"""

_OLDEST = """
SELECT sample_id, content_digest FROM samples
WHERE run = %(run)s AND state = 'ready'
  AND (%(before)s::bigint IS NULL OR replay_order < %(before)s)
ORDER BY replay_order, ready_at, sample_id
LIMIT %(most)s
FOR UPDATE
"""


def next_micro_batches(connection: Connection, run: str, recipe: Recipe) -> int:
    """Make what micro-batches of the replay `run` can be made, up to some thousand samples, in the caller's
    transaction. Returns how many; 0 where there are too few decided samples, or another batcher is at it."""
    needs = needs_of(recipe)
    if needs.groups or needs.pairs:
        return int(next_micro_batch(connection, run, max_in_flight=_UNLIMITED) is not None)
    if not connection.exec_driver_sql(LOCK, {"run": run}).scalar_one():
        return 0
    size = recipe.batch.size
    before = decided_before(connection, run)
    wanted = {"run": run, "before": before, "most": max(1, _SAMPLES // size) * size}
    samples = connection.exec_driver_sql(_OLDEST, wanted).all()
    whole = len(samples) // size
    if not whole:
        return 0
    row = connection.exec_driver_sql(_RUN, {"run": run}).one()
    messages = [
        micro_batch(run, row.policy, row.recipe_digest, row.newest + 1 + n, samples[n * size : (n + 1) * size])
        for n in range(whole)
    ]
    publish(connection, messages)
    return whole
