"""The one transaction that makes a step real: micro-batch consumed, step, weight version, samples, announcement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert

from learner.manifest import manifest_digest
from learner.metrics import Metrics
from schemas.digests import canonical_json
from schemas.messages import WEIGHTS_PUBLISHED, MicroBatchPublished, WeightsPublished
from schemas.states import SAMPLE_TRANSITIONS, may_follow
from schemas.tables import micro_batches, outbox, samples, training_steps, weight_versions
from schemas.topics import WEIGHTS


@dataclass(frozen=True)
class SampleEnd:
    """How a sample of the micro-batch ended: trained, or dropped with a reason. `staleness` in versions."""

    sample_id: str
    staleness: int
    drop_reason: str | None = None
    drop_detail: str | None = None


@dataclass(frozen=True, kw_only=True)
class NewVersion:
    """A version that is whole on disk."""

    version: int
    parent_version: int
    path: str
    manifest: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """Everything that one consumed micro-batch leaves behind. Exactly one of `made` and `skipped_reason` is set."""

    message: MicroBatchPublished
    made: NewVersion | None
    skipped_reason: str | None
    metrics: Metrics
    ends: list[SampleEnd]
    tokens: int
    seconds: float


def commit_step(connection: Connection, record: StepRecord) -> bool:
    """Write `record` in the caller's transaction. False, and nothing written, where the micro-batch is consumed
    already: a commit whose answer was lost is tried again and must not count twice.

    Raises:
        LookupError: the micro-batch is not in the database.
    """
    message = record.message
    state = connection.execute(
        select(micro_batches.c.state).where(micro_batches.c.micro_batch_id == message.micro_batch_id).with_for_update()
    ).scalar_one_or_none()
    if state is None:
        raise LookupError(f"micro-batch {message.micro_batch_id} is not in the database")
    if state == "consumed":
        return False
    connection.execute(
        update(micro_batches)
        .where(micro_batches.c.micro_batch_id == message.micro_batch_id)
        .values(state="consumed", consumed_at=text("now()"))
    )
    trained = [end for end in record.ends if end.drop_reason is None]
    step = connection.execute(
        text("SELECT coalesce(max(step), 0) + 1 FROM training_steps WHERE run = :run"), {"run": message.run}
    ).scalar_one()
    connection.execute(
        insert(training_steps).values(
            run=message.run,
            step=step,
            micro_batch_id=message.micro_batch_id,
            policy=message.policy,
            version=record.made.version if record.made else None,
            skipped_reason=record.skipped_reason,
            metrics=record.metrics,
            samples_trained=len(trained),
            samples_dropped=len(record.ends) - len(trained),
            tokens=record.tokens,
            seconds=record.seconds,
        )
    )
    if record.made is not None:
        add_version(
            connection,
            message.policy,
            record.made.version,
            record.made.path,
            record.made.manifest,
        )
    _end_samples(connection, record.ends)
    return True


def add_version(connection: Connection, policy: str, version: int, path: str, manifest: dict[str, Any]) -> bool:
    """Insert the row of a version and its announcement; False where the row is there already."""
    digest = manifest_digest(manifest)
    inserted = connection.execute(
        upsert(weight_versions)
        .values(
            policy=policy,
            version=version,
            parent_version=manifest["parent_version"],
            run=manifest["run"],
            micro_batch_id=manifest["micro_batch_id"],
            recipe_digest=manifest["recipe_digest"],
            path=path,
            manifest=manifest,
            manifest_sha256=digest,
        )
        .on_conflict_do_nothing()
        .returning(weight_versions.c.version)
    ).one_or_none()
    if inserted is None:
        return False
    announcement = WeightsPublished(
        policy=policy,
        version=version,
        parent_version=manifest["parent_version"],
        run=manifest["run"] or "",
        micro_batch_id=manifest["micro_batch_id"],
        path=path,
        manifest_sha256=digest,
        recipe_digest=manifest["recipe_digest"] or "",
    )
    connection.execute(
        insert(outbox).values(
            topic=WEIGHTS,
            message_id=f"weights/{policy}/{version}",
            message_type=WEIGHTS_PUBLISHED,
            key=policy,
            value=canonical_json(announcement),
        )
    )
    return True


def _end_samples(connection: Connection, ends: list[SampleEnd]) -> None:
    for after in {"trained" if end.drop_reason is None else "dropped" for end in ends}:
        if not may_follow(SAMPLE_TRANSITIONS, "batched", after):
            raise AssertionError(f"{after} must not follow batched")
    for end in ends:
        changed = connection.execute(
            update(samples)
            .where(samples.c.sample_id == end.sample_id, samples.c.state == "batched")
            .values(
                state="trained" if end.drop_reason is None else "dropped",
                drop_reason=end.drop_reason,
                drop_detail=end.drop_detail,
                staleness=end.staleness,
                updated_at=text("now()"),
            )
        )
        if changed.rowcount != 1:
            raise RuntimeError(f"sample {end.sample_id} is not batched: it would be trained twice or lost")
