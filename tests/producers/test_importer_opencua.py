"""OpenCUA: steps are turns, the next screen is what answered them, milestones and corrections are verdicts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from producers.importers import opencua
from producers.importers.detect import Head
from tests.producers.imported import Imported, write_lines

FILE = "data/opencua/agentnetbench_s_df0fd37049f470c2.json"
Read = Callable[..., Imported]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Writes sessions as JSON lines and reads them."""

    def sessions_read(*sessions: Any) -> Imported:
        return Imported(opencua, write_lines(tmp_path / "net.jsonl", sessions))

    return sessions_read


def step(index: int, **said: Any) -> dict[str, Any]:
    value = {
        "observation": f"screen {index}",
        "thought": f"why {index}",
        "action": f"do {index}",
        "code": f"f({index})",
    }
    return {"index": index, "image": f"{index}.png", "value": value | said}


def test_the_shared_file_counted_by_its_lines(shared_dir: Path) -> None:
    found = Imported(opencua, shared_dir / FILE)
    text = (shared_dir / FILE).read_text()
    steps = text.count('"step_num":')
    assert (steps, text.count('"milestone": true'), text.count('"milestone": false')) == (7, 1, 6)
    assert found.counts() == {
        "sessions": 1,
        "turns": steps,
        # each step but the first shows what the step before it did
        "next_states": {"gui_change": steps - 1, "test_verdict": 1},
        "verdicts": 1,
        "refused": 0,
    }


def test_every_step_of_the_shared_file_answers_the_step_before(shared_dir: Path) -> None:
    found = Imported(opencua, shared_dir / FILE)
    text = (shared_dir / FILE).read_text()
    images, numbers = re.findall(r'"image": "([^"]*)"', text), [int(n) for n in re.findall(r'"step_num": (\d+)', text)]
    observations = [json.loads(one) for one in re.findall(r'"observation": ("(?:[^"\\]|\\.)*")', text)]
    actions = [json.loads(one) for one in re.findall(r'"action": ("(?:[^"\\]|\\.)*")', text)]
    assert numbers == [2, 3, 4, 6, 7, 9, 10]
    changes = [state.content or "" for state in found.states if state.kind == "gui_change"]
    for place, content in enumerate(changes):
        jump = numbers[place + 1] - numbers[place] - 1
        note = f"\n[{jump} step(s) between are not in the log]" if jump else ""
        assert content == f"[image: {images[place + 1]}]\n{observations[place + 1]}{note}"
    assert [turn.response.tool_calls[0].arguments for turn in found.turns] == actions
    assert [turn.policy.name for turn in found.turns] == ["human"] * 7
    (milestone,) = [state for state in found.states if state.kind == "test_verdict"]
    assert (milestone.turn_id, milestone.verdict) == (found.turns[2].turn_id, 1.0)
    last = found.turns[-1].messages
    assert [message["role"] for message in last] == ["user", *["user", "assistant"] * 6, "user"]
    assert last[1]["content"][0] == {"type": "image_url", "image_url": {"url": images[0]}}
    assert "ground_truth" not in json.dumps(last)


def test_an_agentnet_row(read: Read) -> None:
    steps = [
        step(0),
        step(1, last_step_correct=True),
        step(2, last_step_correct=False),
        step(3, last_step_correct=None),
    ]
    found = read({"task_id": "t", "instruction": "do it", "task_completed": False, "reason": "secret", "traj": steps})
    assert found.answers() == [
        ("do 0", ["[image: 1.png]\nscreen 1", "last_step_correct"]),
        ("do 1", ["[image: 2.png]\nscreen 2", "last_step_correct"]),
        ("do 2", ["[image: 3.png]\nscreen 3"]),
        ("do 3", ["task_completed"]),
    ]
    assert [state.verdict for state in found.states] == [None, 1.0, None, 0.0, None, 0.0]
    assert [turn.response.reasoning for turn in found.turns] == ["why 0", "why 1", "why 2", "why 3"]
    assert found.asked(0)[0] == ("user", "do it")
    assert "secret" not in json.dumps([turn.messages for turn in found.turns])


def test_bad_steps_and_sessions_cost_themselves(read: Read) -> None:
    good = {"instruction": "x", "traj": [step(0), step(1)]}
    found = read(
        good,
        {"traj": []},
        {"traj": [step(0), 7, step(2), {"index": 3, "image": "3.png", "value": {"observation": "seen"}}, step(4)]},
        "{",
        good,
        {"traj": [step(0), {"image": 5, "value": {}}], "task_completed": True},
    )
    assert [(one.line, one.reason.split(",")[0]) for one in found.refused] == [
        (2, "has no steps (a list `steps` or `traj`)"),
        (3, "step 1: is a JSON number"),
        (3, "step 3: has no action"),
        (4, "not JSON at column 2: Expecting property name enclosed in double quotes"),
        (5, "repeats the session at line 1 word for word"),
        (6, "step 1: `image` is a JSON number"),
        (6, "`task_completed`: the step that it judges could not be read"),
    ]
    # The screen of a step without action still shows what the step before it did; what follows it is no one's.
    assert [states for _, states in found.answers()] == [
        ["[image: 1.png]\nscreen 1"],
        [],
        [],
        ["[image: 3.png]\nseen"],
        [],
        [],
    ]


def test_what_is_taken_for_one() -> None:
    for value, ours in (
        ({"steps": [{"image": "a", "inner_monologue": {}}]}, True),
        ({"traj": [{"image": "a", "value": {}}]}, True),
        ({"traj": [{"role": "user", "content": "x"}]}, False),
        ({"steps": []}, False),
    ):
        assert opencua.sniff(Head("f", json.dumps(value).encode(), True)) is ours
