"""A micro-batch out of Postgres: its samples in order, checked against the digests that were announced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from learner.errors import LearnerStopped
from learner.objective import StepOptions, build_objective
from learner.samples import InvalidSample, TrainingSample
from schemas.arrays import unpack_floats, unpack_ids
from schemas.digests import batch_digest, sample_digest
from schemas.messages import MicroBatchPublished
from schemas.states import DROP_REASONS


@dataclass(frozen=True)
class Loaded:
    """One sample, and whose tokens it holds: the policy that answered and the oldest weight version among them.

    `replayed`: a replay trains what an older policy said. No version of the new one is comparable with it, so no
    staleness is known; how far off it is shows in the importance ratios.
    """

    sample: TrainingSample
    policy: str
    oldest_version: int | None
    replayed: bool = False


@dataclass(frozen=True)
class Drop:
    """A reason of `schemas.states.DROP_REASONS`, and the same in words with numbers."""

    reason: str
    detail: str


_CONTENT = """
SELECT s.sample_id, s.content_digest, s.state, t.prompt_ids, t.response_ids, t.response_logprobs, t.finish_reason,
       t.policy, t.oldest_version, s.replay_order IS NOT NULL AS replayed, w.value AS reward,
       c.logprobs, c.topk_ids, c.topk_logprobs
FROM samples s
JOIN turns t ON t.turn_id = s.turn_id
LEFT JOIN rewards w ON w.run = s.run AND w.turn_id = s.turn_id
LEFT JOIN teacher_scores c ON c.run = s.run AND c.turn_id = s.turn_id
WHERE s.micro_batch_id = :micro_batch
ORDER BY s.position
"""

_ROW = text("SELECT state, digest FROM micro_batches WHERE micro_batch_id = :micro_batch")


def load_batch(connection: Connection, message: MicroBatchPublished) -> list[Loaded] | None:
    """The samples of a micro-batch in its order; None where it is consumed already.

    Raises:
        LearnerStopped: it is not in the database, or holds other samples, another order or other content than
            announced. It is held, not trained.
    """
    named = {"micro_batch": message.micro_batch_id}
    batch = connection.execute(_ROW, named).one_or_none()
    if batch is None:
        raise LearnerStopped(
            f"{_name(message)} is on the log and not in the database: topic and database do not belong together"
        )
    if batch.state == "consumed":
        return None
    rows = connection.execute(text(_CONTENT), named).all()
    if [row.sample_id for row in rows] != message.sample_ids:
        raise LearnerStopped(
            f"{_name(message)} holds {len(rows)} samples in the database and {len(message.sample_ids)} as announced, "
            "or in another order; it is held. Look at samples.micro_batch_id and samples.position"
        )
    unready = [row.sample_id for row in rows if row.state != "batched"]
    if unready:
        raise LearnerStopped(
            f"{_name(message)}: {len(unready)} samples are not batched, first {unready[0]}; it is held"
        )
    loaded = [_checked(row) for row in rows]
    if not batch.digest == message.digest == batch_digest(row.content_digest for row in rows):
        raise LearnerStopped(f"{_name(message)} has another digest in the database than announced; it is held")
    return loaded


def load_trained(connection: Connection, micro_batch_id: str) -> list[TrainingSample]:
    """The samples that a consumed micro-batch trained, in its order: what its weight version was made of.

    Raises:
        LearnerStopped: one was changed since.
    """
    rows = connection.execute(text(_CONTENT), {"micro_batch": micro_batch_id}).all()
    return [_checked(row).sample for row in rows if row.state == "trained"]


def why_not(one: Loaded, *, policy: str, version: int, bound: int, options: StepOptions) -> Drop | None:
    """Why a sample is not trained at its use by weights of `version`; None where it carries a gradient.

    Staleness is `version` minus the oldest version among its tokens; `bound` versions are allowed, 0 means the same
    version only.
    """
    if not one.replayed and (old := _too_old(one, policy, version, bound)) is not None:
        return old
    try:
        one.sample.check()
    except InvalidSample as err:
        return Drop(err.reason if err.reason in DROP_REASONS else "hint_failed", str(err))
    if not build_objective([one.sample], options).kept.any():
        cut = one.sample.truncated and not options.train_truncated
        return Drop("no_signal", "cut off at the length limit" if cut else "no token of it carries a gradient")
    return None


def _too_old(one: Loaded, policy: str, version: int, bound: int) -> Drop | None:
    if one.policy != policy:
        return Drop(
            "unknown_version", f"answered by policy {one.policy!r}, so its version says nothing about {policy!r}"
        )
    if one.oldest_version is None:
        return Drop("unknown_version", "the server did not say which weight version made the tokens")
    staleness = version - one.oldest_version
    if staleness < 0:
        return Drop("unknown_version", f"its tokens name version {one.oldest_version}, and the newest is {version}")
    if staleness > bound:
        detail = f"oldest token by version {one.oldest_version}, weights in training {version}"
        return Drop("stale", f"{detail}: {staleness} behind, at most {bound} allowed")
    return None


def _checked(row: Any) -> Loaded:
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
        raise LearnerStopped(
            f"sample {row.sample_id} was changed after it became ready (its content digest is another); its "
            "micro-batch is held. Put the row back as it was, or drop the sample and its micro-batch"
        )
    sample = TrainingSample(
        sample_id=row.sample_id,
        prompt_ids=unpack_ids(row.prompt_ids),
        response_ids=unpack_ids(row.response_ids),
        response_logprobs=unpack_floats(row.response_logprobs),
        reward=row.reward,
        teacher_logprobs=None if row.logprobs is None else unpack_floats(row.logprobs),
        truncated=row.finish_reason == "length",
    )
    return Loaded(sample, row.policy, row.oldest_version, row.replayed)


def _name(message: MicroBatchPublished) -> str:
    return f"micro-batch {message.seq} of run {message.run!r} ({message.micro_batch_id})"
