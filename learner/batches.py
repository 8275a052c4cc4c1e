"""A micro-batch out of Postgres: its samples in order, checked against the digests that were announced."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, text

from learner.collate import TrainingSample
from schemas.arrays import unpack_floats, unpack_ids
from schemas.digests import batch_digest, sample_digest
from schemas.messages import MicroBatchPublished


class BatchChanged(RuntimeError):
    """The rows of a micro-batch are not the ones that were announced: it is held, not trained."""


@dataclass(frozen=True)
class Loaded:
    """One sample with the oldest weight version among its tokens."""

    sample: TrainingSample
    oldest_version: int


_CONTENT = text(
    """
    SELECT s.sample_id, s.content_digest, t.prompt_ids, t.response_ids, t.response_logprobs, t.finish_reason,
           t.oldest_version, w.value AS reward, c.logprobs, c.topk_ids, c.topk_logprobs
    FROM samples s
    JOIN turns t ON t.turn_id = s.turn_id
    LEFT JOIN rewards w ON w.run = s.run AND w.turn_id = s.turn_id
    LEFT JOIN teacher_scores c ON c.run = s.run AND c.turn_id = s.turn_id
    WHERE s.micro_batch_id = :micro_batch
    ORDER BY s.position
    """
)


def micro_batch_state(connection: Connection, micro_batch_id: str) -> str | None:
    """`published` or `consumed`; None where there is no such row."""
    return connection.execute(
        text("SELECT state FROM micro_batches WHERE micro_batch_id = :id"), {"id": micro_batch_id}
    ).scalar_one_or_none()


def load_samples(connection: Connection, message: MicroBatchPublished) -> list[Loaded]:
    """The samples of a micro-batch in its order.

    Raises:
        BatchChanged: other samples, another order or other content than announced.
    """
    rows = connection.execute(_CONTENT, {"micro_batch": message.micro_batch_id}).all()
    found = [row.sample_id for row in rows]
    if found != message.sample_ids:
        raise BatchChanged(
            f"micro-batch {message.micro_batch_id} holds {len(found)} samples in the database and "
            f"{len(message.sample_ids)} as announced, or in another order"
        )
    loaded, digests = [], []
    for row in rows:
        digest = sample_digest(
            prompt_ids=row.prompt_ids,
            response_ids=row.response_ids,
            response_logprobs=row.response_logprobs,
            reward=row.reward,
            teacher_logprobs=row.logprobs,
            topk_ids=row.topk_ids,
            topk_logprobs=row.topk_logprobs,
        )
        if digest != row.content_digest:
            raise BatchChanged(f"sample {row.sample_id} was changed after it became ready")
        digests.append(digest)
        sample = TrainingSample(
            sample_id=row.sample_id,
            prompt_ids=unpack_ids(row.prompt_ids),
            response_ids=unpack_ids(row.response_ids),
            response_logprobs=unpack_floats(row.response_logprobs),
            reward=row.reward,
            teacher_logprobs=None if row.logprobs is None else unpack_floats(row.logprobs),
            truncated=row.finish_reason == "length",
        )
        loaded.append(Loaded(sample, row.oldest_version))
    if batch_digest(digests) != message.digest:
        raise BatchChanged(f"micro-batch {message.micro_batch_id} has another digest than announced")
    return loaded
