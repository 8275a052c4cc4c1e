"""`hindstream cache stats`: entries by purpose and model, and what each run paid for and was spared."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web

from hindstream.cli.cache import stats
from processors.runs import ensure_run
from schemas.recipes import recipe_named
from tests.processors.conversations import Recording
from tests.processors.evaluating import FakeServer, answered, evaluate, evaluators

pytestmark = pytest.mark.stack


async def test_a_second_run_is_spared_what_the_first_paid_for(
    migrated_database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HINDSTREAM_DATABASE__URL", migrated_database_url)
    recipe = recipe_named("binary-rl", {"judge": {"code": False, "votes": 3}})
    more = recipe_named("binary-rl", {"judge": {"code": False, "votes": 5}})
    recording = Recording(migrated_database_url, recipe)
    stats(json_=True)
    empty = json.loads(capsys.readouterr().out)
    assert (empty["entries"], empty["runs"], empty["asked_now"]) == ([], [], 0)
    recording.record(*answered("early"))
    with recording.engine.begin() as connection:
        ensure_run(connection, run="more", kind="live", policy="policy", recipe=more)
    recording.record(*answered("late"))

    def reply(body: dict[str, Any]) -> web.Response:
        usage = {} if body["seed"] == 4 else {"usage": {"prompt_tokens": 100, "completion_tokens": 2}}
        choice = {"message": {"content": "good"}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice], **usage})

    fake = FakeServer(reply)
    async with fake.running():
        await evaluate(evaluators(judge=fake.url, runs=("live",)), recording)
        await evaluate(evaluators(judge=fake.url, runs=("more",)), recording)
    assert len(fake.requests) == 3 + 3 + 2
    with recording.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM votes WHERE turn_id = 'early' AND vote = 0")
    stats(json_=True)
    found = json.loads(capsys.readouterr().out)
    (entries,) = found["entries"]
    assert entries | {"bytes": 0, "oldest": "", "newest": ""} == {
        "purpose": "reward",
        "model": "policy",
        "entries": 8,
        "bytes": 0,
        "unused": 1,
        "oldest": "",
        "newest": "",
        "prompt_tokens": 700,
        "completion_tokens": 14,
    }
    assert entries["bytes"] > 8 * 20
    live, again = found["runs"]
    assert (live["run"], live["questions"], live["paid"], live["spared"], live["prompt_tokens_spared"]) == (
        "live",
        5,
        5,
        0,
        None,
    )
    assert (again["run"], again["questions"], again["paid"], again["spared"]) == ("more", 5, 2, 3)
    assert (again["prompt_tokens_spared"], again["completion_tokens_spared"]) == (300, 6)
    stats(json_=False)
    shown = capsys.readouterr().out
    assert "60%" in shown
    assert "8 answers" in shown
