"""What is recorded is taken without asking, and the rows are those that asking made."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from sqlalchemy import text
from sqlalchemy.exc import DataError

from processors.evaluators.answers import answer_digest, question_digests
from tests.processors.conversations import Recording
from tests.processors.evaluating import FakeServer
from tests.processors.test_replay import ListLog, alone, config, conversations, events_of, recipe, replay

ASKS = {"judge": {"votes": 3, "quorum": 2, "rules": []}}
ROWS = (
    "SELECT turn_id, state, drop_reason, drop_detail, linked, content_digest, replay_order, position FROM samples",
    "SELECT turn_id, signal, state, priority, reason, finished_at IS NULL FROM evaluations",
    "SELECT turn_id, status, value, annotator_kind, votes_valid, votes_total, explanation FROM rewards",
    "SELECT turn_id, vote, annotator, status, score, explanation, raw, prompt_digest, answer_digest FROM votes",
)


@pytest.mark.parametrize("words", ["good", "a\x00b", "a\ud800b", 'ü "quoted" \\ {}', "\\u0000 as six characters"])
def test_a_question_has_the_digest_of_its_answer_without_a_version(words: str) -> None:
    rendered = [[{"role": "user", "content": words}], {"choice": ["good"]}]
    sampled = [{"temperature": 0.6, "max_tokens": 8, "seed": number} for number in range(3)]
    about: dict[str, Any] = {"purpose": "reward", "model": "j", "prompt_digest": "p", "rendered": rendered}
    assert question_digests(**about, samplings=sampled) == [
        answer_digest(**about, version=None, sampling=one, vote=one["seed"]) for one in sampled
    ]


@pytest.mark.stack
@pytest.mark.parametrize("constrains", [True, False])
async def test_recorded_answers_make_the_rows_that_asking_made(recording: Recording, constrains: bool) -> None:
    """Also where the server takes no constraint, so that only free answers are recorded."""

    def reply(body: dict[str, Any]) -> Any:
        if not constrains and "structured_outputs" in body:
            return web.json_response({"error": {"message": "structured_outputs is unknown"}}, status=400)
        said = ("good", "bad", "neutral")[(len(str(body["messages"])) + body["seed"] // 2) % 3]
        return said if constrains else f"VERDICT: {said}"

    log = conversations(turns=20, sessions=3)
    recording.record(*(one.data for one in events_of(log)))
    fake = FakeServer(reply)
    async with fake.running():
        await replay(
            config(recording, "asked", recipe(**ASKS), evaluators=alone("asked", judge=fake.url)), ListLog(log)
        )
        asked = len(fake.requests)
        assert asked >= 60
        await replay(config(recording, "told", recipe(**ASKS), evaluators=alone("told", judge=fake.url)), ListLog(log))
        assert len(fake.requests) == asked
    for query in ROWS:
        made, again = (recording.rows(f"{query} WHERE run = :run ORDER BY 1, 2", run=run) for run in ("asked", "told"))
        assert made == again
        assert len(made) >= 20
    assert recording.rows("SELECT DISTINCT attempts FROM evaluations WHERE run = 'told'") == [(0,)]


@pytest.mark.stack
def test_lists_of_texts_arrive_as_they_were(recording: Recording) -> None:
    odd = ["", "NULL", "null", None, 'a"b', "a\\b", '\\"', "{,}", " a ", "ä\n\t🙂", "a,b", "'"]
    with recording.engine.connect() as connection:
        for texts in (odd, [None], [None, "a"], ["NULL"], ['"'], []):
            (back,) = connection.execute(text("SELECT CAST(:texts AS text[])"), {"texts": texts}).one()
            assert back == texts
        with pytest.raises(DataError, match="NUL"):
            connection.execute(text("SELECT CAST(:texts AS text[])"), {"texts": ["a", "\x00"]})
