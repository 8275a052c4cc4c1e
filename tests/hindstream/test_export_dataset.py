"""Data sets: who is in and why, in the shapes that TRL documents, the same from JSON lines and from Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert
from typer.testing import CliRunner

from hindstream.cli.main import app
from schemas.events import FeedbackGiven, Response, ToolCall
from schemas.tables import rewards
from tests.processors.conversations import Recording, next_state, turn

ASKED = [{"role": "user", "content": "Where is Oslo?"}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":  "Oslo"}'}}
BAD_CALL = {"id": "c2", "type": "function", "function": {"name": "look", "arguments": "not JSON"}}


def says(text: str) -> dict[str, Any]:
    return {"messages": ASKED, "response": Response(content=text)}


@pytest.fixture
def recording(migrated_database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    """A group of four, a branch, a correction, a tool's call, and turns that are not for learning."""
    made = Recording(migrated_database_url)
    monkeypatch.setenv("HINDSTREAM_DATABASE__URL", migrated_database_url.replace("+psycopg", ""))
    called = [*ASKED, {"role": "assistant", "content": None, "tool_calls": [CALL, BAD_CALL]}]
    made.record(
        *(turn(f"g{i}", session="group", group_id="g", **says(f"candidate {i}")) for i in range(4)),
        turn("b0", session="branch", **says("first try")),
        turn("b1", session="branch", **says("second try")),
        turn("b2", session="branch", parent="b0", **says("later")),
        turn("b3", session="branch", messages=[{"role": "user", "content": "other"}], response=Response(content="?")),
        turn("c0", session="corrected", **says("In Sweden.")),
        FeedbackGiven(feedback_id="f", session_id="corrected", turn_id="c0", correction="In Norway.", author="me"),
        FeedbackGiven(feedback_id="same", session_id="corrected", turn_id="c0", correction="In Sweden."),
        turn(
            "tool",
            session="tool",
            messages=[*called, {"role": "tool", "tool_call_id": "c1", "content": "59.9 N"}],
            tools=TOOLS,
            response=Response(tool_calls=[ToolCall(id="c3", name="look", arguments='{"n": 1}')], reasoning="Hm."),
            finish_reason="tool_calls",
        ),
        turn("cut", session="cut", finish_reason="length", **says("In No")),
        turn("side", session="side", kind="side", **says("a title")),
        turn("silent", session="silent", **says("nobody rated it")),
        next_state("n", "tool", session="tool"),
    )
    values = {"g0": 1, "g1": -1, "g2": 1, "g3": -1, "b0": -1, "b1": 1, "b2": 1, "b3": 0, "tool": 1, "cut": 1, "side": 1}
    with made.engine.begin() as connection:
        for turn_id, value in values.items():
            row = {"run": "live", "turn_id": turn_id, "status": "scored" if value else "tie", "value": value}
            connection.execute(
                insert(rewards).values(row | {"annotator_kind": "CODE", "votes_valid": 1, "votes_total": 1})
            )
        abstained = {"run": "live", "turn_id": "silent", "status": "abstained", "votes_valid": 0, "votes_total": 1}
        connection.execute(insert(rewards).values(abstained))
    yield made
    made.engine.dispose()


def data_set(kind: str, path: Path) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["export", "dataset", "--kind", kind, "--run", "live", "--to", str(path)])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in path.read_text().splitlines()] if path.suffix == ".jsonl" else []


def by_turn(rows: list[dict[str, Any]], name: str = "turn_id") -> dict[str, dict[str, Any]]:
    assert len({row[name] for row in rows}) == len(rows)
    return {row[name]: row for row in rows}


@pytest.mark.stack
def test_sft_is_the_turns_with_a_positive_reward(recording: Recording, tmp_path: Path) -> None:
    rows = by_turn(data_set("sft", tmp_path / "sft.jsonl"))
    assert set(rows) == {"g0", "g2", "b1", "b2", "tool"}
    (digest,) = recording.one("SELECT recipe_digest FROM runs")
    assert rows["g2"] == {
        "prompt": ASKED,
        "completion": [{"role": "assistant", "content": "candidate 2"}],
        "tools": None,
        "turn_id": "g2",
        "session_id": "group",
        "reward": 1.0,
        "annotator_kind": "CODE",
        "policy": "policy",
        "policy_version": 1,
        "run": "live",
        "recipe_digest": digest,
    }


@pytest.mark.stack
def test_calls_carry_objects_and_what_is_none_stays_text(recording: Recording, tmp_path: Path) -> None:
    row = by_turn(data_set("sft", tmp_path / "sft.jsonl"))["tool"]
    calls = [call["function"]["arguments"] for call in row["prompt"][1]["tool_calls"]]
    assert calls == [{"at": "Oslo"}, "not JSON"]
    assert json.loads(row["tools"]) == TOOLS
    assert row["completion"] == [
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Hm.",
            "tool_calls": [{"type": "function", "id": "c3", "function": {"name": "look", "arguments": {"n": 1}}}],
        }
    ]


@pytest.mark.stack
def test_kto_is_every_turn_with_a_reward_that_is_not_0(recording: Recording, tmp_path: Path) -> None:
    rows = by_turn(data_set("kto", tmp_path / "kto.jsonl"))
    assert {name: row["label"] for name, row in rows.items()} == {
        "g0": True, "g1": False, "g2": True, "g3": False, "b0": False, "b1": True, "b2": True, "tool": True,
    }  # fmt: skip
    assert all(row["label"] == (row["reward"] > 0) for row in rows.values())


@pytest.mark.stack
def test_dpo_pairs_groups_branches_and_corrections(recording: Recording, tmp_path: Path) -> None:
    rows = by_turn(data_set("dpo", tmp_path / "dpo.jsonl"), "rejected_turn_id")
    shown = {(row["pair"], row["chosen_turn_id"], name) for name, row in rows.items()}
    assert shown == {("group", "g0", "g3"), ("group", "g2", "g1"), ("branch", "b1", "b0"), ("correction", None, "c0")}
    assert all(row["prompt"] == ASKED for row in rows.values())
    pair, corrected = rows["b0"], rows["c0"]
    assert (pair["chosen"][0]["content"], pair["rejected"][0]["content"]) == ("second try", "first try")
    assert (pair["chosen_reward"], pair["rejected_reward"]) == (1.0, -1.0)
    assert (corrected["chosen"][0]["content"], corrected["rejected"][0]["content"]) == ("In Norway.", "In Sweden.")
    assert (corrected["feedback_id"], corrected["author"], corrected["rejected_reward"]) == ("f", "me", None)


@pytest.mark.stack
def test_both_files_load_to_the_same_rows(recording: Recording, tmp_path: Path) -> None:
    """With HuggingFace's own loader, which gives fields of messages that differ as objects only where it is told to."""
    from datasets import load_dataset

    for kind in ("sft", "kto", "dpo"):
        written = data_set(kind, tmp_path / f"{kind}.jsonl")
        data_set(kind, tmp_path / f"{kind}.parquet")
        for loader, suffix in (("json", "jsonl"), ("parquet", "parquet")):
            files, cache = str(tmp_path / f"{kind}.{suffix}"), str(tmp_path / "cache")
            rows = list(load_dataset(loader, data_files=files, split="train", cache_dir=cache))
            assert [dict(row) for row in rows] == written, (kind, loader)
        messages = [one for row in written for name in ("prompt", "completion", "chosen") for one in row.get(name, ())]
        assert all({"role", "content"} <= set(one) for one in messages), "what TRL takes for a conversation"


@pytest.mark.stack
def test_users_mistakes_are_one_line(recording: Recording, tmp_path: Path) -> None:
    def output(code: int, *arguments: str) -> str:
        result = CliRunner().invoke(app, ["export", "dataset", *arguments])
        assert result.exit_code == code, result.output
        return result.output

    there = tmp_path / "there.jsonl"
    there.touch()
    target = str(tmp_path / "new.jsonl")
    assert "choose sft, dpo or kto" in output(2, "--kind", "ppo", "--to", target)
    assert "there is no run nobody" in output(2, "--kind", "sft", "--run", "nobody", "--to", target)
    assert "ends in .jsonl or .parquet" in output(2, "--kind", "sft", "--run", "live", "--to", str(tmp_path / "x.csv"))
    assert "there.jsonl exists" in output(2, "--kind", "sft", "--run", "live", "--to", str(there))
    with recording.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM rewards")
    assert "has no example of kind sft yet" in output(1, "--kind", "sft", "--run", "live", "--to", target)
    assert [path.name for path in tmp_path.iterdir()] == ["there.jsonl"]
