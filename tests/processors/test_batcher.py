"""Micro-batches: oldest first, numbered without a gap, none too stale, no sample in two of them."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from processors.batcher import BatcherConfig, next_micro_batch, run_batcher
from processors.health import Health
from schemas.digests import batch_digest
from schemas.events import PolicyRef, VersionSpan
from schemas.messages import MICRO_BATCH_PUBLISHED, MicroBatchPublished
from schemas.recipes import recipe_named
from tests.processors.conversations import Recording
from tests.processors.evaluating import answered, balance, evaluate, evaluators, until

pytestmark = pytest.mark.stack

SIZE = 3


async def made(url: str, turns: dict[str, int], *, max_staleness: int = 4) -> Recording:
    """A database with a ready sample for each turn, whose tokens the given weight version made."""
    judge = {"votes": 0, "rules": [{"pattern": "thanks", "score": 1}]}
    batch = {"size": SIZE, "max_staleness": max_staleness}
    recording = Recording(url, recipe_named("binary-rl", {"judge": judge, "batch": batch}))
    for name, version in turns.items():
        spans = [VersionSpan(version=version, start=0, end=1), VersionSpan(version=version + 1, start=1, end=3)]
        recording.record(*answered(name, policy=PolicyRef(name="policy", spans=spans)))
        await evaluate(evaluators(), recording)
    assert balance(recording)["ready"] == len(turns)
    return recording


def batched(recording: Recording, max_in_flight: int = 1) -> MicroBatchPublished | None:
    with recording.engine.begin() as connection:
        return next_micro_batch(connection, "live", max_in_flight=max_in_flight)


def execute(recording: Recording, statement: str) -> None:
    with recording.engine.begin() as connection:
        connection.exec_driver_sql(statement)


def newest_version(recording: Recording, version: int) -> None:
    execute(
        recording,
        "INSERT INTO weight_versions (policy, version, path, manifest, manifest_sha256) "
        f"VALUES ('policy', {version}, '/w', '{{}}', 'x')",
    )


async def test_the_oldest_ready_samples_become_a_micro_batch(migrated_database_url: str) -> None:
    recording = await made(migrated_database_url, {f"t{i}": 1 for i in (3, 1, 4, 0, 5)})
    message = batched(recording)
    assert message is not None
    rows = recording.rows("SELECT turn_id, sample_id, content_digest FROM samples ORDER BY ready_at LIMIT 3")
    assert [row[0] for row in rows] == ["t3", "t1", "t4"]
    assert message.sample_ids == [row[1] for row in rows]
    assert message.digest == batch_digest(row[2] for row in rows)
    placed = recording.rows("SELECT turn_id, micro_batch_id FROM samples WHERE state = 'batched' ORDER BY position")
    assert placed == [(turn_id, message.micro_batch_id) for turn_id in ("t3", "t1", "t4")]
    assert recording.one("SELECT seq, size, state, digest FROM micro_batches") == (1, 3, "published", message.digest)
    key, kind, message_id, value = recording.one(
        "SELECT key, message_type, message_id, value FROM outbox WHERE topic = 'micro-batches'"
    )
    assert (key, kind, message_id) == ("policy", MICRO_BATCH_PUBLISHED, message.micro_batch_id)
    assert json.loads(value)["sample_ids"] == message.sample_ids
    assert balance(recording)["ready"] == 5


async def test_too_few_wait_and_numbers_have_no_gap(migrated_database_url: str) -> None:
    recording = await made(migrated_database_url, {f"t{i}": 1 for i in range(2 * SIZE + 1)})
    assert [batched(recording, 9) is not None for _ in range(3)] == [True, True, False]
    assert recording.rows("SELECT seq FROM micro_batches ORDER BY seq") == [(1,), (2,)]
    assert recording.one("SELECT count(*) FROM samples WHERE state = 'ready'") == (1,)


async def test_a_run_does_not_run_ahead_of_its_learner(migrated_database_url: str) -> None:
    recording = await made(migrated_database_url, {f"t{i}": 1 for i in range(2 * SIZE)})
    assert batched(recording) is not None
    assert batched(recording) is None
    execute(recording, "UPDATE micro_batches SET state = 'consumed'")
    second = batched(recording)
    assert second is not None
    assert second.seq == 2


@pytest.mark.parametrize(("bound", "fresh"), [(1, ["v4", "v5"]), (2, ["v3", "v4", "v5"]), (0, ["v5"])])
async def test_staleness_is_measured_from_the_oldest_token(
    migrated_database_url: str, bound: int, fresh: list[str]
) -> None:
    recording = await made(migrated_database_url, {f"v{v}": v for v in (3, 4, 5)}, max_staleness=bound)
    newest_version(recording, 5)
    message = batched(recording)
    assert (message is not None) == (len(fresh) == SIZE)
    left = recording.rows("SELECT turn_id FROM samples WHERE state <> 'dropped' ORDER BY turn_id")
    assert [row[0] for row in left] == fresh
    for turn_id, reason, staleness, detail in recording.rows(
        "SELECT turn_id, drop_reason, staleness, drop_detail FROM samples WHERE state = 'dropped'"
    ):
        behind = 5 - int(turn_id[1:])
        assert (reason, staleness) == ("stale", behind)
        assert f"{behind} behind, at most {bound} allowed" in detail
    assert balance(recording)["dropped"] == 3 - len(fresh)


async def test_two_batchers_never_take_the_same_sample(migrated_database_url: str) -> None:
    recording = await made(migrated_database_url, {f"t{i}": 1 for i in range(4 * SIZE)})
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            list(pool.map(lambda _: batched(recording, 99), range(4)))
    batches = recording.rows("SELECT seq, size FROM micro_batches ORDER BY seq")
    assert batches == [(seq, SIZE) for seq in range(1, 5)]
    per_batch = recording.rows("SELECT count(*) FROM samples WHERE state = 'batched' GROUP BY micro_batch_id")
    assert per_batch == [(SIZE,)] * 4
    assert recording.one("SELECT count(*) FROM outbox WHERE topic = 'micro-batches'") == (4,)


async def test_a_batcher_that_dies_before_its_commit_has_done_nothing(migrated_database_url: str) -> None:
    recording = await made(migrated_database_url, {f"t{i}": 1 for i in range(SIZE)})
    with recording.engine.connect() as connection:
        lost = next_micro_batch(connection, "live", max_in_flight=1)
        assert lost is not None
        assert batched(recording) is None  # its lock
        connection.rollback()
    assert balance(recording)["ready"] == SIZE
    again = batched(recording)
    assert again == lost


async def test_the_service_batches_what_becomes_ready_and_stops(migrated_database_url: str) -> None:
    recording = await made(migrated_database_url, {f"t{i}": 1 for i in range(2 * SIZE)})
    stop = asyncio.Event()
    config = BatcherConfig(max_in_flight=2, poll_s=0.02)
    running = asyncio.create_task(run_batcher(config, recording.engine, stop, Health()))
    await until(lambda: recording.one("SELECT count(*) FROM micro_batches") == (2,))
    stop.set()
    await asyncio.wait_for(running, 5)
