"""A teacher at one version: what another version says never becomes the pinned one's, and what was said once is not
asked again."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from learner.batches import load_batch
from learner.errors import LearnerStopped
from processors.batcher import next_micro_batch
from schemas.arrays import unpack_floats, unpack_ids
from schemas.events import PolicyRef, Tokens, VersionSpan
from schemas.recipes import InvalidRecipe, recipe_named
from tests.processors.conversations import Recording
from tests.processors.evaluating import answered, balance, evaluate, evaluators, server
from tests.processors.teachers import NewerRunner, log_prob

pytestmark = pytest.mark.stack

ASKED = "Where does the Spree end?"
HINT = "Name the river first."
RESPONSE = [40, 41, 42, 43]


class Moving(NewerRunner):
    """It says that it serves 3 and answers by what it was given: loaded between the two."""

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"weight_version": "3"})


def record(recording: Recording, *names: str) -> None:
    """Turns of the same question and answer; each reply holds the hint."""
    prompt = [*map(ord, ASKED), 2]
    for name in names:
        tokens = Tokens(
            source="engine", prompt_ids=prompt, response_ids=RESPONSE, response_logprobs=[-1.0] * len(RESPONSE)
        )
        spans = [VersionSpan(version=0, start=0, end=len(RESPONSE))]
        recording.record(
            *answered(
                name,
                reply=HINT,
                messages=[{"role": "user", "content": ASKED}],
                tokens=tokens,
                policy=PolicyRef(name="policy", spans=spans),
            )
        )


async def taught(url: str, teacher: NewerRunner, *names: str, **more: Any) -> Recording:
    hint = {"patterns": [r"(Name .*)"], "votes": 0}
    recording = Recording(url, recipe_named("opd", {"hint": hint, "teacher": {"top_k": 4, **more}}))
    record(recording, *(names or ("t",)))
    await evaluate(evaluators(teacher=teacher.url, max_attempts=2), recording)
    assert balance(recording)["pending"] == 0
    return recording


async def test_scores_of_the_pinned_version_are_kept_and_serve_when_the_server_has_moved_on(
    migrated_database_url: str,
) -> None:
    async with NewerRunner("3").running() as teacher:
        recording = await taught(migrated_database_url, teacher, "t", version=3)
        assert recording.one("SELECT teacher_version, mean_gain IS NOT NULL FROM teacher_scores") == (3, True)
        teacher.versions = ["9"]
        record(recording, "same")
        await evaluate(evaluators(teacher=teacher.url), recording)
        assert recording.rows("SELECT teacher_version FROM teacher_scores") == [(3,), (3,)]
        assert len(teacher.asked) == 1


async def test_an_adapter_that_is_named_for_the_version_teaches_beside_what_is_served(
    migrated_database_url: str,
) -> None:
    async with NewerRunner("9").running() as teacher:
        teacher.adapters = ("policy@2", "policy@3")
        recording = await taught(migrated_database_url, teacher, "t", version=3)
        assert recording.rows("SELECT teacher, teacher_version FROM teacher_scores") == [("policy", 3)]
        assert teacher.names == {"policy@3"}


async def test_another_version_is_refused_and_nothing_is_written(migrated_database_url: str) -> None:
    async with NewerRunner("5").running() as teacher:
        recording = await taught(migrated_database_url, teacher, version=3)
        assert teacher.asked == []
        assert recording.one("SELECT count(*) FROM teacher_scores") == (0,)
        assert recording.one("SELECT count(*) FROM model_answers") == (0,)
        (reason,) = recording.one("SELECT reason FROM evaluations WHERE signal = 'teacher' AND state = 'failed'")
        assert reason == (
            f"wrong_version: the recipe pins version 3, and {teacher.url} serves '5'; load it: "
            f"`hindstream weights serve --version 3 --url {teacher.url}`"
        )
        assert recording.sample("t")[:2] == ("dropped", "hint_failed")


async def test_an_answer_of_weights_that_were_loaded_meanwhile_is_not_kept(migrated_database_url: str) -> None:
    async with Moving("4", "3").running() as teacher:
        recording = await taught(migrated_database_url, teacher, version=3)
        assert recording.rows("SELECT teacher_version FROM teacher_scores") == [(3,)]
        assert recording.one("SELECT count(*) FROM model_answers WHERE answer ->> 'version' <> '3'") == (0,)


async def test_without_a_pin_each_score_keeps_the_version_that_gave_it(migrated_database_url: str) -> None:
    async with NewerRunner("5").running() as teacher:
        recording = await taught(migrated_database_url, teacher, "t")
        teacher.versions = ["6"]
        record(recording, "later")
        config = evaluators(teacher=teacher.url)
        await evaluate(config, recording)
        found = dict(recording.rows("SELECT turn_id, teacher_version FROM teacher_scores"))
        assert found == {"t": 5, "later": 6}


async def test_the_same_ids_are_scored_once_however_many_turns_ask_at_once(migrated_database_url: str) -> None:
    async with NewerRunner("5").running() as teacher:
        recording = await taught(migrated_database_url, teacher, "a", "b", "c", "d")
        assert len(teacher.asked) == 1
    rows = recording.rows("SELECT logprobs, hinted_prompt_ids FROM teacher_scores")
    assert len(rows) == 4
    for logprobs, prompt in rows:
        start = len(unpack_ids(prompt))
        assert unpack_floats(logprobs).tolist() == pytest.approx(
            [log_prob(start + place, token) for place, token in enumerate(RESPONSE)]
        )


async def test_the_policys_likeliest_are_named_by_it_and_scored_by_the_teacher(migrated_database_url: str) -> None:
    async with NewerRunner("5").running() as teacher:
        hint = {"patterns": [r"(Name .*)"], "votes": 0}
        recipe = recipe_named("opd-topk", {"hint": hint, "batch": {"size": 1}})
        recording = Recording(migrated_database_url, recipe)
        record(recording, "t")
        await evaluate(evaluators(teacher=teacher.url), recording)
    ids, scores, version, prompt = recording.one(
        "SELECT student_ids, student_logprobs, student_version, hinted_prompt_ids FROM teacher_scores"
    )
    start, seen = len(unpack_ids(prompt)), len(ASKED) + 1
    named = [[1000 + (seen + place) * 10 + rank for rank in range(1, 5)] for place in range(len(RESPONSE))]
    assert unpack_ids(ids).reshape(-1, 4).tolist() == named
    true = [[log_prob(start + place, one) for one in row] for place, row in enumerate(named)]
    assert unpack_floats(scores).reshape(-1, 4).tolist() == [pytest.approx(row) for row in true]
    assert version == 5

    # The learner finds them beside the teacher's own likeliest, and notices where one was changed.
    with recording.engine.begin() as connection:
        message = next_micro_batch(connection, "live", max_in_flight=9)
        assert message is not None
        loaded = load_batch(connection, message)
        assert loaded is not None
        sample = loaded[0].sample
        assert sample.teacher_topk_ids is not None
        assert sample.teacher_topk_logprobs is not None
        assert sample.teacher_topk_ids[:, 8:].tolist() == named
        assert sample.teacher_topk_logprobs[:, 8:].tolist() == [pytest.approx(row) for row in true]
        connection.exec_driver_sql("UPDATE teacher_scores SET student_logprobs = student_ids")
        with pytest.raises(LearnerStopped, match="was changed after it became ready"):
            load_batch(connection, message)


async def test_where_the_policy_names_none_the_scores_come_without_and_the_reason_is_told(
    migrated_database_url: str,
) -> None:
    hint = {"patterns": [r"(Name .*)"], "votes": 0}
    recording = Recording(migrated_database_url, recipe_named("opd-topk", {"hint": hint}))
    record(recording, "t")
    async with NewerRunner("5").running() as teacher, NewerRunner("5", scores=False).running() as policy:
        await evaluate(evaluators(teacher=teacher.url, policy=server(policy.url)), recording)
    found = recording.one("SELECT student_k, student_ids, student_logprobs, length(logprobs) FROM teacher_scores")
    assert found == (None, None, None, 4 * len(RESPONSE))
    state, reason = recording.one("SELECT state, reason FROM evaluations WHERE signal = 'teacher'")
    assert state == "done"
    assert reason.startswith("student_ids: the policy's server did not name them: refused: ")
    assert "prompt_logprobs are off" in reason
    assert recording.sample("t")[0] == "ready"


@pytest.mark.parametrize(
    ("teacher", "why"),
    [
        ({"top_k": 3}, "teacher.top_k"),
        ({"version": 3, "weights": "ema"}, "teacher.version pins what the teacher's server serves"),
        ({"student_ids": True}, "teacher.student_ids: nothing would read the scores"),
    ],
)
def test_what_a_teacher_cannot_be_is_refused(teacher: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRecipe, match=why):
        recipe_named("opd", {"teacher": teacher})
