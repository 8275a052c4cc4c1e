"""Micro-batches of pairs: siblings that differ, corrections, and nothing else; the learner finds the same pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from learner.batches import Loaded, load_batch
from processors.batcher import next_micro_batch
from processors.replay import progress
from processors.replay.progress import Range
from processors.replay.selection import Selection
from processors.settling import settle_read
from schemas.chat_tokens import ChatTokens
from schemas.events import EventData, FeedbackGiven, Response, SessionClosed, Tokens
from schemas.recipes import recipe_named
from tests.processors.conversations import Recording, next_state, turn
from tests.processors.evaluating import balance, evaluate, evaluators

pytestmark = pytest.mark.stack

JUDGE = {"votes": 0, "rules": [{"pattern": "thanks", "score": 1}, {"pattern": "wrong", "score": -1}]}
ASKED = [{"role": "user", "content": "Well?"}]
TEXT: dict[str, Any] = {"messages": ASKED, "tokens": Tokens(source="none")}


def dpo(url: str, size: int = 2) -> Recording:
    return Recording(url, recipe_named("dpo", {"judge": JUDGE, "batch": {"size": size}}))


def branches(session: str, *replies: str, **more: Any) -> list[EventData]:
    """Answers to the same messages of one session, each with what a person said to it."""
    events: list[EventData] = []
    for number, reply in enumerate(replies):
        name = f"{session}{number}"
        events += [turn(name, session, **{**TEXT, **more}), next_state(f"n-{name}", name, session, content=reply)]
    return [*events, SessionClosed(session_id=session)]


def batched(recording: Recording, model: Path) -> list[Loaded] | None:
    """The next micro-batch as the learner loads it: its digests must be those that settling gave."""
    with recording.engine.begin() as connection:
        message = next_micro_batch(connection, "live", max_in_flight=99)
        return None if message is None else load_batch(connection, message, ChatTokens(model))


def turns_of(recording: Recording, loaded: list[Loaded] | None) -> list[str]:
    assert loaded is not None
    turns = dict(recording.rows("SELECT sample_id, turn_id FROM samples"))
    return [turns[one.sample.sample_id] for one in loaded]


def drops(recording: Recording) -> dict[str, str]:
    return dict(recording.rows("SELECT turn_id, drop_reason FROM samples WHERE state = 'dropped'"))


async def test_pairs_of_branches_groups_and_corrections(migrated_database_url: str, model_dir: Path) -> None:
    recording = dpo(migrated_database_url, size=5)
    recording.record(*branches("a", "wrong", "hm", "thanks", "thanks"))
    recording.record(
        *branches("b", "thanks", group_id="g"),
        *branches("c", "wrong", group_id="g", tokens=turn("x").tokens),
        *branches("d", "wrong", messages=[{"role": "user", "content": "Another?"}], group_id="g"),
        turn("e", "e", **TEXT, response=Response(content="One.")),
        FeedbackGiven(feedback_id="f", session_id="e", turn_id="e", correction="Two."),
        FeedbackGiven(feedback_id="g", session_id="e", turn_id="e", correction="One."),
        SessionClosed(session_id="e"),
        turn("h", "h", **TEXT),
        SessionClosed(session_id="h"),
    )
    await evaluate(evaluators(), recording)
    loaded = batched(recording, model_dir)
    names = turns_of(recording, loaded)
    assert loaded is not None
    pairs: dict[str, dict[bool, str]] = {}
    for name, one in zip(names, loaded, strict=True):
        assert one.sample.pair is not None
        pairs.setdefault(one.sample.pair[0], {})[one.sample.pair[1]] = name
    found = {tuple(both[better] for better in sorted(both, reverse=True)) for both in pairs.values()}
    assert found == {("a2", "a0"), ("b0", "c0"), ("e",)}
    assert drops(recording) == {
        "a1": "reward_abstained",  # nobody could tell whether it was liked
        "a3": "uninformative",  # as good as its mirror
        "d0": "uninformative",  # of the group, and an answer to something else
        "h": "reward_abstained",
    }
    samples = {name: one.sample for name, one in zip(names, loaded, strict=True)}
    chat = ChatTokens(model_dir)
    corrected = samples["e"].correction_ids
    assert corrected is not None
    assert corrected.tolist() == chat.turn(ASKED, [], {"role": "assistant", "content": "Two."}).response_ids.tolist()
    assert samples["a2"].response_ids.tolist()[-1] == 2
    assert samples["a2"].response_logprobs is None
    assert samples["c0"].response_ids.tolist() == [3, 4, 5]  # the engine's, as they are
    assert balance(recording)["dropped"] == 4


async def test_siblings_wait_for_the_end_of_their_session(migrated_database_url: str, model_dir: Path) -> None:
    recording = dpo(migrated_database_url)
    first, reply, second, other, closed = branches("a", "wrong", "thanks")
    recording.record(first, reply)
    assert batched(recording, model_dir) is None
    recording.record(second, other, closed)
    await evaluate(evaluators(), recording)
    assert sorted(turns_of(recording, batched(recording, model_dir))) == ["a0", "a1"]


async def test_a_correction_that_comes_later_changes_no_sample(migrated_database_url: str, model_dir: Path) -> None:
    recording = dpo(migrated_database_url)
    recording.record(*branches("a", "wrong", "thanks"))
    await evaluate(evaluators(), recording)
    recording.record(FeedbackGiven(feedback_id="f", session_id="a", turn_id="a0", correction="Better so."))
    loaded = batched(recording, model_dir)
    assert sorted(turns_of(recording, loaded)) == ["a0", "a1"]
    assert loaded is not None
    assert [one.sample.correction_ids for one in loaded] == [None, None]


async def test_sft_takes_text_of_any_version_and_every_answer_if_it_is_told(
    migrated_database_url: str, model_dir: Path
) -> None:
    every = {"advantage": {"kind": "every"}, "judge": {"votes": 0}, "batch": {"size": 4, "max_staleness": 0}}
    recording = Recording(migrated_database_url, recipe_named("sft", every))
    recording.record(
        *branches("a", "wrong"),
        *branches("b", "hm", tokens=turn("x").tokens),
        turn("c", "c", **TEXT),  # the last of its session
        SessionClosed(session_id="c"),
        turn("d", "d", **TEXT, finish_reason="length"),
        SessionClosed(session_id="d"),
        turn("e", "e", **{**TEXT, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        SessionClosed(session_id="e"),
    )
    await evaluate(evaluators(), recording)
    loaded = batched(recording, model_dir)
    assert sorted(turns_of(recording, loaded)) == ["a0", "b0", "c", "e"]
    assert drops(recording) == {"d": "no_signal"}
    assert loaded is not None
    unusable = [one.unusable for one in loaded if one.unusable is not None]
    assert [(drop.reason, drop.detail) for drop in unusable] == [
        ("not_renderable", "message 0 (user) holds image_url, and the policy reads text")
    ]


async def test_a_replay_settles_pairs_when_its_log_is_read(migrated_database_url: str, model_dir: Path) -> None:
    """A correction may stand anywhere on the log, and must count wherever the reading was interrupted."""
    recording = dpo(migrated_database_url, size=1)
    with recording.engine.begin() as connection:
        log = Range(log="file:x", starts={0: 0}, ends={0: 9}, selection=Selection())
        progress.begin(connection, "live", log, "samples")
    recording.record(*branches("a", "hm"))
    await evaluate(evaluators(), recording)
    assert recording.sample("a0")[0] == "pending"
    assert batched(recording, model_dir) is None
    recording.record(FeedbackGiven(feedback_id="f", session_id="a", turn_id="a0", correction="Better so."))
    with recording.engine.begin() as connection:
        progress.mark_read(connection, "live")
        settle_read(connection, "live")
    loaded = batched(recording, model_dir)
    assert turns_of(recording, loaded) == ["a0"]
    assert loaded is not None
    assert loaded[0].sample.correction_ids is not None
