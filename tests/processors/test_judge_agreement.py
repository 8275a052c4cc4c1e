"""The view judge_agreement: the share of valid votes with the score that most gave, by run and turn."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.events import FeedbackGiven
from schemas.recipes import recipe_named
from tests.processors.conversations import Recording
from tests.processors.evaluating import FakeServer, answered, balance, evaluate, evaluators

COLUMNS = "votes_total, votes_valid, votes_invalid, votes_error, agreement, kinds"
ROW = f"SELECT {COLUMNS} FROM judge_agreement WHERE turn_id ="


@pytest.mark.stack
async def test_votes_of_all_kinds_are_kept_and_their_agreement_is_shown(migrated_database_url: str) -> None:
    """Three kinds on one turn, combined by the recipe; a vote that says nothing agrees with nobody."""
    recipe = recipe_named("binary-rl", {"judge": {"combine": "majority", "votes": 3, "quorum": 1}})
    recording = Recording(migrated_database_url, recipe)
    failed: dict[str, Any] = {"kind": "terminal_output", "exit_code": 2}
    recording.record(
        FeedbackGiven(feedback_id="f", session_id="session-all", turn_id="all", thumbs="down", author="anna"),
        *answered("all", reply="no such file", state=failed),
        *answered("none", reply="Hm."),
        *answered("split", reply="Well."),
    )

    def reply(body: dict[str, Any]) -> str:
        shown = body["messages"][1]["content"]
        if "Hm." in shown:
            return "perhaps"
        return ["good", "good", "bad"][body["seed"]] if "Well." in shown else ["good", "good", "hm"][body["seed"]]

    fake = FakeServer(reply)
    async with fake.running():
        await evaluate(evaluators(judge=fake.url), recording)
    assert recording.one(f"{ROW} 'all'") == (5, 4, 1, 0, 0.5, ["CODE", "HUMAN", "LLM"])
    assert recording.one(f"{ROW} 'none'") == (3, 0, 3, 0, None, None)
    votes, valid, _, _, share, kinds = recording.one(f"{ROW} 'split'")
    assert (votes, valid, kinds) == (3, 3, ["LLM"])
    assert share == pytest.approx(2 / 3)
    value = "SELECT status, value, annotator_kind FROM rewards WHERE turn_id ="
    assert recording.one(f"{value} 'all'") == ("scored", -1.0, "HUMAN")
    assert recording.one(f"{value} 'none'") == ("abstained", None, "LLM")
    assert recording.one(f"{value} 'split'") == ("scored", 1.0, "LLM")
    balance(recording)
