"""Micro-batches become rows and announcements, many in a few statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from processors.inserting import insert_new
from schemas import tables
from schemas.digests import batch_digest, canonical_json, content_id
from schemas.messages import MICRO_BATCH_PUBLISHED, MicroBatchPublished
from schemas.states import SAMPLE_TRANSITIONS, must_follow
from schemas.topics import MICRO_BATCHES

PUT_IN = """
UPDATE samples s SET state = 'batched', micro_batch_id = placed.micro_batch_id, position = placed.position,
       updated_at = now()
FROM unnest(%(samples)s::text[], %(micro_batches)s::text[], %(positions)s::int[])
     AS placed(sample_id, micro_batch_id, position)
WHERE s.sample_id = placed.sample_id AND s.state = 'ready'
"""


def micro_batch(run: str, policy: str, recipe_digest: str, seq: int, samples: Sequence[Any]) -> MicroBatchPublished:
    """The run's micro-batch number `seq` of `samples`, which have `sample_id` and `content_digest`, in their order."""
    digest = batch_digest(sample.content_digest for sample in samples)
    return MicroBatchPublished(
        micro_batch_id=content_id("batch", run, seq, digest),
        run=run,
        policy=policy,
        seq=seq,
        recipe_digest=recipe_digest,
        sample_ids=[sample.sample_id for sample in samples],
        digest=digest,
    )


def publish(connection: Connection, messages: Sequence[MicroBatchPublished]) -> None:
    """Write the micro-batches, put their samples in, and leave an announcement of each in the outbox, in the caller's
    transaction."""
    batches: list[dict[str, Any]] = [
        {
            "micro_batch_id": message.micro_batch_id,
            "run": message.run,
            "policy": message.policy,
            "seq": message.seq,
            "recipe_digest": message.recipe_digest,
            "digest": message.digest,
            "size": len(message.sample_ids),
            "state": "published",
        }
        for message in messages
    ]
    insert_new(connection, tables.micro_batches, batches)
    must_follow(SAMPLE_TRANSITIONS, "ready", "batched")
    connection.exec_driver_sql(
        PUT_IN,
        {
            "samples": [sample for message in messages for sample in message.sample_ids],
            "micro_batches": [message.micro_batch_id for message in messages for _ in message.sample_ids],
            "positions": [position for message in messages for position in range(len(message.sample_ids))],
        },
    )
    announcements: list[dict[str, Any]] = [
        {
            "topic": MICRO_BATCHES,
            "message_id": message.micro_batch_id,
            "message_type": MICRO_BATCH_PUBLISHED,
            "key": message.policy,
            "value": canonical_json(message),
        }
        for message in messages
    ]
    insert_new(connection, tables.outbox, announcements)
