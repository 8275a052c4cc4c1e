"""The one transaction that makes a step real: micro-batch consumed, step, weight version, samples, announcement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, insert, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert

from learner.batches import Drop
from learner.errors import LearnerStopped
from learner.manifest import manifest_digest
from learner.metrics import Metrics
from schemas.digests import canonical_json, content_id
from schemas.messages import WEIGHTS_PUBLISHED, MicroBatchPublished, WeightsPublished
from schemas.states import SAMPLE_TRANSITIONS, must_follow
from schemas.tables import micro_batches, outbox, samples, training_steps, weight_versions
from schemas.topics import WEIGHTS


@dataclass(frozen=True)
class SampleEnd:
    """How a sample of the micro-batch ended: trained (no `drop`), or dropped. `staleness` in versions, where known."""

    sample_id: str
    staleness: int | None
    drop: Drop | None = None


@dataclass(frozen=True)
class NewVersion:
    """A version that is whole on disk at `path`."""

    version: int
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
    """Write `record` in the caller's transaction. False, and nothing written, where exactly this step is committed
    already: a commit whose answer was lost is tried again and must not count twice.

    Raises:
        LearnerStopped: the micro-batch was consumed by another step, the version is taken, or a sample is no longer
            in the micro-batch; then nothing must be committed.
    """
    message = record.message
    row = micro_batches.c.micro_batch_id == message.micro_batch_id
    state = connection.execute(select(micro_batches.c.state).where(row).with_for_update()).scalar_one_or_none()
    if state != "published":
        if state == "consumed" and _is_ours(connection, record):
            return False
        raise LearnerStopped(
            f"micro-batch {message.seq} of run {message.run!r} is {state or 'gone'}: another learner works on this "
            "run; stop one of them. This step was not committed"
        )
    connection.execute(update(micro_batches).where(row).values(state="consumed", consumed_at=func.now()))
    if record.made is not None:
        made = record.made
        if not add_version(connection, message.policy, made.version, made.path, made.manifest):
            raise LearnerStopped(
                f"version {made.version} of policy {message.policy!r} exists already: another learner works on this "
                "policy; stop one of them. This step was not committed"
            )
    _add_step(connection, record)
    _end_samples(connection, message.micro_batch_id, record.ends)
    return True


def add_version(connection: Connection, policy: str, version: int, path: str, manifest: dict[str, Any]) -> bool:
    """Insert the row of a version and its announcement; False where the row is there already."""
    digest = manifest_digest(manifest)
    lineage = {name: manifest[name] for name in ("parent_version", "run", "micro_batch_id", "recipe_digest")}
    inserted = connection.execute(
        upsert(weight_versions)
        .values(policy=policy, version=version, path=path, manifest=manifest, manifest_sha256=digest, **lineage)
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
            message_id=content_id("weights", policy, version, digest),
            message_type=WEIGHTS_PUBLISHED,
            key=policy,
            value=canonical_json(announcement),
        )
    )
    return True


def _is_ours(connection: Connection, record: StepRecord) -> bool:
    found = connection.execute(
        select(training_steps.c.skipped_reason, weight_versions.c.version, weight_versions.c.manifest_sha256)
        .outerjoin(
            weight_versions,
            (weight_versions.c.policy == training_steps.c.policy)
            & (weight_versions.c.version == training_steps.c.version),
        )
        .where(training_steps.c.micro_batch_id == record.message.micro_batch_id)
    ).one_or_none()
    made = record.made
    expected = (record.skipped_reason, made and made.version, made and manifest_digest(made.manifest))
    return found is not None and tuple(found) == expected


def _add_step(connection: Connection, record: StepRecord) -> None:
    message = record.message
    dropped = sum(end.drop is not None for end in record.ends)
    newest = select(func.coalesce(func.max(training_steps.c.step), 0)).where(training_steps.c.run == message.run)
    connection.execute(
        insert(training_steps).values(
            run=message.run,
            step=connection.execute(newest).scalar_one() + 1,
            micro_batch_id=message.micro_batch_id,
            policy=message.policy,
            version=record.made.version if record.made else None,
            skipped_reason=record.skipped_reason,
            metrics={name: value for name, value in record.metrics.items() if value is not None},
            samples_trained=len(record.ends) - dropped,
            samples_dropped=dropped,
            tokens=record.tokens,
            seconds=record.seconds,
        )
    )


_END = text(
    """
    UPDATE samples s
    SET state = CASE WHEN ended.reason IS NULL THEN 'trained' ELSE 'dropped' END,
        drop_reason = ended.reason, drop_detail = ended.detail, staleness = ended.staleness, updated_at = now()
    FROM unnest(CAST(:ids AS text[]), CAST(:reasons AS text[]), CAST(:details AS text[]), CAST(:staleness AS int[]))
         AS ended(sample_id, reason, detail, staleness)
    WHERE s.sample_id = ended.sample_id AND s.state = 'batched' AND s.micro_batch_id = :micro_batch
    """
)


def _end_samples(connection: Connection, micro_batch_id: str, ends: list[SampleEnd]) -> None:
    for after in ("trained", "dropped"):
        must_follow(SAMPLE_TRANSITIONS, "batched", after)
    columns = {
        "ids": [end.sample_id for end in ends],
        "reasons": [end.drop and end.drop.reason for end in ends],
        "details": [end.drop and end.drop.detail for end in ends],
        "staleness": [end.staleness for end in ends],
        "micro_batch": micro_batch_id,
    }
    changed = connection.execute(_END, columns).rowcount
    whole = connection.execute(
        select(func.count()).select_from(samples).where(samples.c.micro_batch_id == micro_batch_id)
    ).scalar_one()
    if not changed == whole == len(ends):
        raise LearnerStopped(
            f"micro-batch {micro_batch_id}: {changed} of its {whole} samples were batched at the commit, {len(ends)} "
            "at its start: somebody changed them meanwhile. This step was not committed"
        )
