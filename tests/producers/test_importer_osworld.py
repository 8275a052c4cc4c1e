"""OSWorld's runs, samples of our own: a model's answer may be several actions, result.txt is the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from producers.importers import osworld
from producers.importers.detect import Head
from tests.producers.imported import Imported, write_lines

Read = Callable[..., Imported]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Writes rows as a run, with `result` beside it, and reads it."""

    def rows_read(*rows: Any, result: str | None = None) -> Imported:
        if result is not None:
            (tmp_path / "result.txt").write_text(result)
        return Imported(osworld, write_lines(tmp_path / "traj.jsonl", rows))

    return rows_read


def row(number: int, action: Any, response: Any = "say", shot: str | None = "after.png", **more: Any) -> dict[str, Any]:
    base = {"step_num": number, "action": action, "response": response, "reward": 0, "done": False, "info": {}}
    return base | ({} if shot is None else {"screenshot_file": shot}) | more


def test_a_run_counted_by_hand(read: Read) -> None:
    found = read(
        row(1, "click(1, 2)", "first", "1.png"),
        row(2, "type('a')", "second", "2a.png"),
        row(2, {"action_type": "KEY", "parameters": {"key": "é"}}, "second", "2b.png"),
        row(3, "DONE", "third", "3.png", done=True, info={"done": True}),
        result="0.5\n",
    )
    assert found.counts() == {
        "sessions": 1,
        "turns": 3,
        "next_states": {"gui_change": 4, "test_verdict": 1},
        "verdicts": 1,
        "refused": 0,
    }
    assert found.answers() == [
        ("first", ["[image: 1.png]"]),
        ("second", ["[image: 2a.png]", "[image: 2b.png]"]),
        ("third", ['[image: 3.png]\n{"done":true}', "result"]),
    ]
    assert [call.arguments for call in found.turns[1].response.tool_calls] == [
        "type('a')",
        '{"action_type":"KEY","parameters":{"key":"é"}}',
    ]
    assert found.states[-1].verdict == 0.5
    assert [message["role"] for message in found.turns[2].messages] == [
        "assistant",
        "user",
        "assistant",
        "user",
        "user",
    ]
    assert [turn.origin.line for turn in found.turns if turn.origin] == [1, 2, 4]


def test_the_same_answer_in_two_steps_is_two_turns(read: Read) -> None:
    found = read(row(1, "wait"), row(2, "wait"), row(2, "wait", "other"))
    assert [len(turn.response.tool_calls) for turn in found.turns] == [1, 1, 1]


def test_an_instruction_in_a_row_opens_the_request(read: Read) -> None:
    found = read(row(1, "a", shot=None, instruction="do it"), row(2, "b"))
    assert found.asked(0) == [("user", "do it")]
    assert len(found.states) == 1, "a row without a screen and without info shows nothing"


@pytest.mark.parametrize(
    ("result", "verdict"), [("1", 1.0), ("0.0", 0.0), ("1.5", None), ("nan", None), ("", None), ("null", None)]
)
def test_the_verdict_beside_the_run(read: Read, result: str, verdict: float | None) -> None:
    found = read(row(1, "a"), result=result)
    assert [state.verdict for state in found.states[1:]] == ([] if verdict is None else [verdict])
    assert len(found.refused) == (verdict is None)


def test_bad_lines_cost_themselves(read: Read) -> None:
    found = read("{", row(1, "a"), {"Error": "Time limit exceeded"}, [1], row(2, None), {"step_num": 3}, row(4, "b"))
    assert [(one.line, one.reason[:28]) for one in found.refused] == [
        (1, "not JSON at column 2: Expect"),
        (3, "the harness's note that the "),
        (4, "is a JSON list, not an objec"),
        (5, "`action` is null: nothing wa"),
        (6, "has no `action` or no `step_"),
    ]
    assert len(found.turns) == 2


def test_what_is_taken_for_one() -> None:
    lines = "\n".join(json.dumps(one) for one in ({"Error": "x"}, row(1, "a")))
    assert osworld.sniff(Head("traj.jsonl", lines.encode(), True))
    for other in ({"step_num": 1, "action": "a"}, {"action": "a", "done": False}, [1]):
        assert not osworld.sniff(Head("traj.jsonl", json.dumps(other).encode(), True))
