"""Micro-batches of whole groups: none is split or waits for a dropped candidate, none without a contrast is trained."""

from __future__ import annotations

from typing import Any

import pytest

from learner.batches import load_batch
from learner.samples import TrainingSample
from processors.batcher import next_micro_batch
from schemas.events import SessionClosed
from schemas.recipes import recipe_named
from tests.processors.conversations import Recording, next_state, turn
from tests.processors.evaluating import answered, balance, evaluate, evaluators
from tests.processors.test_settling import HINT, SCORES, finished

pytestmark = pytest.mark.stack

JUDGE = {"votes": 0, "rules": [{"pattern": "thanks", "score": 1}, {"pattern": "wrong", "score": -1}]}
REPLIES = {"+": "thanks", "-": "wrong", "?": "hm"}


async def made(url: str, groups: dict[str, str], *, size: int = 2, **batch: Any) -> Recording:
    """Candidates of each group in the order of its signs: liked, disliked, or one that the rules cannot tell."""
    recipe = recipe_named("grpo", {"judge": JUDGE, "batch": {"size": size, **batch}})
    recording = Recording(url, recipe)
    for group, signs in groups.items():
        for number, sign in enumerate(signs):
            recording.record(*answered(f"{group}{number}", REPLIES[sign], group_id=group))
        await evaluate(evaluators(), recording)
    return recording


def batched(recording: Recording) -> list[str] | None:
    """The turns of the next micro-batch: groups in order, and sorted within each, since they became ready together."""
    with recording.engine.begin() as connection:
        message = next_micro_batch(connection, "live", max_in_flight=99)
    if message is None:
        return None
    turns = dict(recording.rows("SELECT sample_id, turn_id FROM samples"))
    found = [turns[sample] for sample in message.sample_ids]
    groups = list(dict.fromkeys(turn[0] for turn in found))
    assert [turn[0] for turn in found] == [turn[0] for turn in sorted(found, key=lambda turn: groups.index(turn[0]))]
    return sorted(found, key=lambda turn: (groups.index(turn[0]), turn))


def found_by_the_learner(recording: Recording) -> list[TrainingSample]:
    """The next micro-batch as the learner loads it: its digests must be those that settling gave."""
    with recording.engine.begin() as connection:
        message = next_micro_batch(connection, "live", max_in_flight=99)
        assert message is not None
        loaded = load_batch(connection, message)
    assert loaded is not None
    return [one.sample for one in loaded]


def drops(recording: Recording) -> dict[str, str]:
    return dict(recording.rows("SELECT turn_id, drop_reason FROM samples WHERE state = 'dropped'"))


async def test_a_micro_batch_holds_whole_groups_and_at_least_its_size(migrated_database_url: str) -> None:
    recording = await made(migrated_database_url, {"a": "+-+", "b": "-+", "c": "+-"}, size=4)
    assert batched(recording) == ["a0", "a1", "a2", "b0", "b1"]
    assert batched(recording) is None
    assert balance(recording)["ready"] == 7


async def test_a_group_without_a_contrast_is_dropped_with_its_reason(migrated_database_url: str) -> None:
    recording = await made(migrated_database_url, {"a": "++", "b": "-", "c": "+-"})
    assert batched(recording) == ["c0", "c1"]
    assert drops(recording) == {"a0": "uninformative", "a1": "uninformative", "b0": "uninformative"}
    assert balance(recording)["dropped"] == 3


async def test_a_group_waits_for_a_pending_candidate_and_not_for_a_dropped_one(migrated_database_url: str) -> None:
    recording = await made(migrated_database_url, {"a": "+-?", "b": "+-"})
    assert drops(recording) == {"a2": "reward_abstained"}
    recording.record(*answered("b2", "thanks", group_id="b"))  # not judged yet
    assert batched(recording) == ["a0", "a1"]
    assert batched(recording) is None
    await evaluate(evaluators(), recording)
    assert batched(recording) == ["b0", "b1", "b2"]


async def test_a_group_waits_until_as_many_candidates_are_recorded_as_the_recipe_says(
    migrated_database_url: str,
) -> None:
    recording = await made(migrated_database_url, {"a": "+-"}, group_size=3)
    assert batched(recording) is None
    recording.record(*answered("a2", "wrong", group_id="a"))
    await evaluate(evaluators(), recording)
    assert batched(recording) == ["a0", "a1", "a2"]


async def test_a_turn_that_is_no_candidate_says_nothing_to_a_recipe_of_groups(migrated_database_url: str) -> None:
    recording = await made(migrated_database_url, {"a": "+-"})
    recording.record(*answered("lone", "thanks"))
    await evaluate(evaluators(), recording)
    assert drops(recording) == {"lone": "uninformative"}


async def test_the_learner_finds_the_groups_that_were_announced(migrated_database_url: str) -> None:
    recording = await made(migrated_database_url, {"a": "+-", "b": "+-"}, size=4)
    samples = found_by_the_learner(recording)
    assert [sample.group_id for sample in samples] == ["a", "a", "b", "b"]
    assert sorted(sample.reward or 0 for sample in samples) == [-1, -1, 1, 1]


async def test_the_learner_finds_what_a_session_earned_before(migrated_database_url: str) -> None:
    recording = Recording(
        migrated_database_url, recipe_named("session-baseline", {"judge": JUDGE, "batch": {"size": 3}})
    )
    turns = [turn(f"t{place}", parent=f"t{place - 1}" if place else None, ordinal=place) for place in range(3)]
    replies = [next_state(f"n{place}", f"t{place}", content=REPLIES[sign]) for place, sign in enumerate("+-+")]
    recording.record(*turns, *replies, SessionClosed(session_id="s"))
    await evaluate(evaluators(), recording)
    earlier = {sample.earlier_rewards for sample in found_by_the_learner(recording)}
    assert earlier == {(), (1.0,), (1.0, -1.0)}


def test_the_learner_finds_the_prompt_that_its_own_teacher_reads(migrated_database_url: str) -> None:
    recipe = recipe_named("sdpo", {"hint": {"patterns": ["x"], "votes": 0}, "batch": {"size": 1}})
    recording = Recording(migrated_database_url, recipe)
    recording.record(*answered("t"))
    finished(recording, "hint", HINT)
    finished(recording, "teacher", SCORES)
    (sample,) = found_by_the_learner(recording)
    assert sample.hinted_prompt_ids is not None
    assert sample.hinted_prompt_ids.tolist() == [1, 2, 9]
    assert sample.teacher_topk_ids is not None
    assert sample.teacher_topk_ids.shape == (3, 4)
