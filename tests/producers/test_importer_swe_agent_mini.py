"""mini-SWE-agent: both versions, tool calls and text, people who interrupt, and requests that are what was sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from producers.importers import swe_agent_mini
from producers.importers.detect import head_of
from tests.producers.imported import Imported

Read = Callable[..., Imported]
START = [{"role": "system", "content": "You fix."}, {"role": "user", "content": "fix it"}]
INFO = {
    "mini_version": "2.0.0",
    "exit_status": "Submitted",
    "submission": "diff",
    "config": {"model": {"model_name": "m", "model_kwargs": {"temperature": 0, "top_p": "x"}, "api_key": "SECRET"}},
}


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Writes messages after the start as a run and reads it."""

    def run_read(*messages: Any, **fields: Any) -> Imported:
        run = {"info": INFO, "messages": [*START, *messages], "trajectory_format": "mini-swe-agent-1.1"} | fields
        path = tmp_path / "run.traj.json"
        path.write_text(json.dumps(run, indent=1))
        assert swe_agent_mini.sniff(head_of(path))
        return Imported(swe_agent_mini, path)

    return run_read


def says(content: str | None, *ids: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    calls = [{"id": own, "type": "function", "function": {"name": "bash", "arguments": "{}"}} for own in ids]
    response = {"choices": [{"finish_reason": finish}]}
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": calls or None,
        "extra": {"response": response},
    } | more


def printed(text: str, call_id: str | None = None, code: int | None = 0, **extra: Any) -> dict[str, Any]:
    message = {"role": "user", "content": text, "extra": {"returncode": code, **extra}}
    return message if call_id is None else message | {"role": "tool", "tool_call_id": call_id}


def test_a_run_with_tool_calls(read: Read) -> None:
    got = read(
        says("I look.", "x", "y", finish="tool_calls", reasoning_content="hm"),
        printed("two", "y", code=1),
        printed("null", "x"),
        says("Submit.", "z"),
        {"role": "exit", "content": "diff", "extra": {"exit_status": "Submitted", "submission": "diff"}},
    )
    assert got.counts() == {
        "sessions": 1,
        "turns": 2,
        "next_states": {"terminal_output": 2},
        "verdicts": 0,
        "refused": 0,
    }
    assert got.answers() == [("I look.", ["two", "null"]), ("Submit.", [])]
    assert [(s.tool_call_id, s.exit_code, s.role) for s in got.states] == [("y", 1, "tool"), ("x", 0, "tool")]
    first = got.turns[0]
    assert (first.response.reasoning, first.policy.name, first.sampling) == ("hm", "m", {"temperature": 0.0})
    assert got.asked(0) == [("system", "You fix."), ("user", "fix it")]
    assert [role for role, _ in got.asked(1)[2:]] == ["assistant", "tool", "tool"]
    assert "SECRET" not in str(got.events)


def test_a_run_in_text(read: Read) -> None:
    got = read(says("THOUGHT: look\n```bash\nls\n```"), printed("<returncode>0</returncode>", code=1), says("Done."))
    assert [(s.kind, s.role, s.content, s.exit_code) for s in got.states] == [
        ("terminal_output", "user", "<returncode>0</returncode>", 1)
    ]
    assert [turn.finish_reason for turn in got.turns] == ["stop", "stop"]
    assert got.asked(1)[-1] == ("user", "<returncode>0</returncode>")


def test_the_first_version_notes_nothing_beside_its_messages(read: Read) -> None:
    said = {"role": "user", "content": "Interrupted by user: use git"}
    got = read(
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "<returncode>1</returncode>"},
        {"role": "assistant", "content": "b"},
        said,
        trajectory_format="mini-swe-agent-1",
    )
    assert [(s.kind, s.content, s.exit_code) for s in got.states] == [
        ("terminal_output", "<returncode>1</returncode>", None),
        ("user_reply", "Interrupted by user: use git", None),
    ]


def test_who_speaks_in_role_user_is_told_by_what_is_noted(read: Read) -> None:
    complaint = {"role": "user", "content": "No tool calls", "extra": {"interrupt_type": "FormatError"}}
    rejection = {"role": "user", "content": "rejected: no", "extra": {"interrupt_type": "UserRejection"}}
    own = {"role": "user", "content": "User command: ls", "extra": {"actions": [{"command": "ls"}]}}
    end = {"role": "user", "content": "", "extra": {"exit_status": "Submitted"}}
    got = read(says("a"), complaint, says("b", "x"), rejection, own, printed("files"), says("c"), end)
    assert [(s.kind, s.content) for s in got.states] == [
        ("tool_result", "No tool calls"),
        ("user_reply", "rejected: no"),
    ]
    assert got.answers() == [("a", ["No tool calls"]), ("b", ["rejected: no"]), ("c", [])]
    assert [text for _, text in got.asked(2)][-3:] == ["rejected: no", "User command: ls", "files"]


def test_commands_that_did_not_end_have_no_exit_code(read: Read) -> None:
    got = read(
        says("a", "x", "y", "z"), printed("", "x", code=-1), printed("", "y", code=None), printed("k", "z", True)
    )
    assert [state.exit_code for state in got.states] == [None, None, None]
    assert [state.content for state in got.states] == ["", "", "k"]


def test_answers_of_the_responses_api(read: Read) -> None:
    items = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "x", "name": "bash", "arguments": '{"command": "ls"}'},
    ]
    shown = {"type": "function_call_output", "call_id": "x", "output": "files", "extra": {"returncode": 0}}
    got = read({"object": "response", "output": items, "extra": {}}, shown)
    assert got.answers() == [("I look.", ["files"])]
    assert got.turns[0].response.reasoning == "hm"
    assert got.states[0].exit_code == 0


@pytest.mark.parametrize(
    ("finish", "content", "ids", "expected"),
    [
        ("length", "a", [], "length"),
        ("stop", "", [], "stop"),
        (None, "", [], "aborted"),
        (None, None, ["x"], "tool_calls"),
    ],
)
def test_how_an_answer_ended(read: Read, finish: str | None, content: str, ids: list[str], expected: str) -> None:
    assert read(says(content, *ids, finish=finish)).turns[0].finish_reason == expected


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"role": "bird", "content": ""}, "role 'bird' is none of"),
        (printed("x", "zz"), "no answer before it made the tool call 'zz'"),
        ({"role": "assistant", "content": 5}, "`content` is a JSON number"),
        (says("a") | {"tool_calls": [{"id": "x"}]}, "a tool call has no `function` object"),
        (5, "a JSON number, not an object"),
    ],
)
def test_a_message_that_makes_no_sense_is_refused_and_nothing_after_it_is_guessed(
    read: Read, bad: Any, reason: str
) -> None:
    got = read(says("a"), printed("one"), bad, printed("whose?"), says("b"), printed("two"))
    (refused,) = got.refused
    assert reason in refused.reason
    assert refused.line > 15
    assert got.answers() == [("a", ["one"]), ("b", ["two"])]


def test_a_file_that_breaks_off_keeps_what_is_whole(read: Read, tmp_path: Path) -> None:
    whole = read(says("a"), printed("one"), says("b"), printed("two"))
    text = (tmp_path / "run.traj.json").read_text()
    path = tmp_path / "cut.traj.json"
    path.write_text(text[: text.index("two")])
    cut = Imported(swe_agent_mini, path)
    assert [turn.messages for turn in cut.turns] == [turn.messages for turn in whole.turns]
    assert len(cut.states) == 1
    assert cut.refused


def test_files_without_an_answer_say_so(read: Read) -> None:
    assert [row.reason for row in read().refused] == ["`messages` has no answer, so there is no turn"]
    assert [row.reason for row in read(messages=5).refused] == ["the file has no list `messages`, so there is no turn"]


def test_the_files_of_other_agents_are_not_taken(shared_dir: Path) -> None:
    assert not [path for path in (shared_dir / "data").rglob("*.*") if swe_agent_mini.sniff(head_of(path))]
