"""A step is one transaction: all of it or nothing, once, and never over another's."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from learner.batches import Drop
from learner.commit import NewVersion, SampleEnd, StepRecord, add_version, commit_step
from learner.errors import LearnerStopped
from learner.manifest import Lineage, manifest_digest
from schemas.messages import MicroBatchPublished
from tests.learner.learning import Learning, mixed

pytestmark = pytest.mark.stack


def manifest_of(message: MicroBatchPublished, version: int = 1, content: str = "a") -> dict[str, Any]:
    lineage = Lineage(
        policy="p",
        version=version,
        parent_version=version - 1,
        run=message.run,
        micro_batch_id=message.micro_batch_id,
        micro_batch_digest=message.digest,
        recipe_digest=message.recipe_digest,
    )
    return {"format": 1, **lineage.__dict__, "files": {"model.safetensors": {"sha256": content, "bytes": 1}}}


def record_of(message: MicroBatchPublished, **more: Any) -> StepRecord:
    fields: dict[str, Any] = {
        "message": message,
        "made": NewVersion(1, "/w/p/v000001", manifest_of(message)),
        "skipped_reason": None,
        "metrics": {"loss": 0.5, "absent": None},
        "ends": [
            SampleEnd(message.sample_ids[0], 1, Drop("stale", "too old")),
            *(SampleEnd(name, 0) for name in message.sample_ids[1:]),
        ],
        "tokens": 7,
        "seconds": 1.5,
    }
    return StepRecord(**{**fields, **more})


def commit(learning: Learning, record: StepRecord) -> bool:
    with learning.engine.begin() as connection:
        return commit_step(connection, record)


def everything(learning: Learning) -> list[list[tuple[Any, ...]]]:
    return [
        learning.rows(f"SELECT * FROM {table} ORDER BY 1, 2")
        for table in ("micro_batches", "training_steps", "weight_versions", "samples", "outbox")
    ]


@pytest.fixture
def message(learning: Learning) -> MicroBatchPublished:
    return learning.add_batch(mixed(0), send=False)


def test_a_step_leaves_all_its_rows(learning: Learning, message: MicroBatchPublished) -> None:
    record = record_of(message)
    assert commit(learning, record)
    assert learning.one("SELECT state, consumed_at IS NOT NULL FROM micro_batches") == ("consumed", True)
    assert learning.one(
        "SELECT step, version, metrics, samples_trained, samples_dropped, tokens, seconds FROM training_steps"
    ) == (1, 1, {"loss": 0.5}, 3, 1, 7, 1.5)
    assert learning.ends(message) == [("dropped", "stale", 1), *[("trained", None, 0)] * 3]
    assert record.made is not None
    assert learning.one("SELECT manifest, manifest_sha256 FROM weight_versions") == (
        record.made.manifest,
        manifest_digest(record.made.manifest),
    )
    (announced,) = learning.rows("SELECT message_type, key FROM outbox WHERE topic = 'weights'")
    assert announced == ("hindstream.weights.published.v1", "p")


def test_a_commit_whose_answer_was_lost_counts_once(learning: Learning, message: MicroBatchPublished) -> None:
    record = record_of(message)
    assert commit(learning, record)
    before = everything(learning)
    assert not commit(learning, record)
    assert everything(learning) == before


@pytest.mark.parametrize("more", ["content", "skipped"])
def test_a_micro_batch_that_another_consumed_is_not_committed_again(
    learning: Learning, message: MicroBatchPublished, more: str
) -> None:
    commit(learning, record_of(message))
    before = everything(learning)
    other = (
        record_of(message, made=NewVersion(1, "/w", manifest_of(message, content="b")))
        if more == "content"
        else record_of(message, made=None, skipped_reason="masked_batch")
    )
    with pytest.raises(LearnerStopped, match="another learner works on this run"):
        commit(learning, other)
    assert everything(learning) == before


def test_a_version_that_another_made_is_never_replaced(learning: Learning, message: MicroBatchPublished) -> None:
    with learning.engine.begin() as connection:
        add_version(connection, "p", 1, "/elsewhere", manifest_of(message, content="b"))
    before = everything(learning)
    with pytest.raises(LearnerStopped, match="version 1 of policy 'p' exists already"):
        commit(learning, record_of(message))
    assert everything(learning) == before


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE samples SET state = 'dropped', drop_reason = 'erased' WHERE position = 2",
        "UPDATE samples SET micro_batch_id = 'other' WHERE position = 2",
    ],
)
def test_samples_that_changed_during_the_step_undo_it(
    learning: Learning, message: MicroBatchPublished, change: str
) -> None:
    learning.execute(change)
    before = everything(learning)
    with pytest.raises(LearnerStopped, match="somebody changed them meanwhile"):
        commit(learning, record_of(message))
    assert everything(learning) == before


def test_a_step_without_a_version_needs_a_reason(learning: Learning, message: MicroBatchPublished) -> None:
    with pytest.raises(IntegrityError, match="version_or_reason"):
        commit(learning, record_of(message, made=None))
    assert commit(learning, record_of(message, made=None, skipped_reason="masked_batch"))
    assert learning.one("SELECT count(*) FROM weight_versions") == (0,)
