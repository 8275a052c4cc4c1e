"""The whole path on the real stack: from a conversation to a new weight version that vLLM serves, and back in SQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hindstream.demo.recipe import demo_recipe
from producers.simulated_user.questions import TRAINING_QUESTIONS
from producers.simulated_user.taste import REACTIONS, opinion
from schemas.recipes import Recipe
from tests.end_to_end.pipeline import Pipeline, Said

pytestmark = [pytest.mark.stack, pytest.mark.vllm, pytest.mark.slow]

BATCH = 4


def converse(pipeline: Pipeline, session: str, question: str) -> Said:
    """One question and the user's reaction; the reaction's own answer is a side turn."""
    said = pipeline.say(session, [{"role": "user", "content": question}])
    pipeline.say(
        session,
        [
            {"role": "user", "content": question},
            {"role": "assistant", "content": said.text},
            {"role": "user", "content": REACTIONS[opinion(question, said.text)]},
        ],
        max_tokens=4,
        headers={"X-Turn-Type": "side", "X-Session-Done": "true"},
    )
    return said


def test_a_conversation_becomes_a_weight_version_that_answers(
    start_pipeline: Callable[[Recipe, str], Pipeline],
) -> None:
    pipeline = start_pipeline(demo_recipe(lr=3e-5, batch_size=BATCH), "path")
    pipeline.start("worker", "worker", "run")
    pipeline.start("weights", "weights", "follow")
    pipeline.start("learner", "learner", "run")
    pipeline.start_gateway()
    serving = "SELECT max(version) FROM weight_loads WHERE policy = :policy AND status = 'serving'"
    pipeline.wait(lambda: pipeline.value(serving, policy="path") == 0, 300, "version 0 is not served")

    with ThreadPoolExecutor(BATCH) as pool:
        said = list(pool.map(lambda i: converse(pipeline, f"talk-{i}", TRAINING_QUESTIONS[i]), range(BATCH)))
    assert {s.recorded for s in said} == {"true"}
    pipeline.wait(lambda: pipeline.value(serving, policy="path") == 1, 300, "version 1 is not served")

    answer = pipeline.say("after", [{"role": "user", "content": "What is rain?"}], temperature=0.0)
    spans = "SELECT version_spans FROM turns WHERE turn_id = :turn"
    pipeline.wait(lambda: bool(pipeline.rows(spans, turn=answer.turn_id)), 180, "the last turn is not recorded")
    (made_by,) = {span["version"] for span in pipeline.value(spans, turn=answer.turn_id)}
    assert made_by == 1

    lineage = pipeline.rows("SELECT * FROM lineage WHERE policy = 'path' AND version = 1 ORDER BY position")
    assert [row.position for row in lineage] == list(range(BATCH))
    assert {row.turn_id for row in lineage} == {s.turn_id for s in said}
    by_turn = {s.turn_id: s for s in said}
    for row in lineage:
        assert row.answered == by_turn[row.turn_id].text
        assert row.messages[-1]["role"] == "user"
        question = row.messages[-1]["content"]
        liked = opinion(question, row.answered) == "liked"
        assert row.reward == (1.0 if liked else -1.0)
        assert row.reward_by == "CODE"
        assert (row.hint is None) is liked
        assert row.next_states[0]["content"] == REACTIONS[opinion(question, row.answered)]
        assert (row.teacher_gain is None) is liked
        assert 0 <= row.staleness <= 4
    assert pipeline.value("SELECT count(DISTINCT recipe_digest) FROM lineage") == 1

    ledger = pipeline.ledger()
    assert ledger["balance"] == 0
    assert ledger["turns_seen"] == 2 * BATCH + 1
    assert ledger["trained"] == BATCH
    drops = {row.drop_reason: row.turns for row in pipeline.rows("SELECT * FROM drops")}
    assert drops == {"side_turn": BATCH}
    (load,) = pipeline.rows("SELECT * FROM weight_loads WHERE version = 1")
    assert load.status == "serving"
    assert load.canary_before != load.canary_after

    signals = pipeline.rows("SELECT message_id FROM outbox WHERE topic = 'signals' AND sent_at IS NOT NULL")
    assert len(signals) >= BATCH
    assert pipeline.value("SELECT count(*) FROM dead_letters") == 0
    path = Path(pipeline.value("SELECT path FROM weight_versions WHERE policy = 'path' AND version = 1"))
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["parent_version"] == 0
    assert manifest["micro_batch_id"] == lineage[0].micro_batch_id
