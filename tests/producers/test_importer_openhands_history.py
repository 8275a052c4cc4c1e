"""Old OpenHands histories: the shared files are all there; ids, causes, several calls, delegation and verdicts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from producers.importers import openhands_history
from producers.importers.detect import head_of
from tests.producers.imported import Imported, same_events, write_lines

SHORT, GUI = "openhands/basic.json", "openhands/basic_gui_mode.json"
Read = Callable[..., Imported]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Writes events as a history and reads it."""

    def rows_read(*rows: Any) -> Imported:
        path = tmp_path / "history.json"
        path.write_text(json.dumps(rows, indent=1))
        return Imported(openhands_history, path)

    return rows_read


def user(own: int, text: str, **args: Any) -> dict[str, Any]:
    return {"id": own, "source": "user", "action": "message", "args": {"content": text, "image_urls": None, **args}}


def response(own: str, content: str | None, *ids: str, finish: str = "tool_calls") -> dict[str, Any]:
    calls = [{"id": i, "type": "function", "function": {"name": "execute_bash", "arguments": "{}"}} for i in ids]
    message = {"role": "assistant", "content": content, "tool_calls": calls or None}
    return {"id": own, "model": "m", "choices": [{"message": message, "finish_reason": finish}]}


def acts(
    own: int, call_id: str, made: dict[str, Any] | None = None, action: str = "run", **args: Any
) -> dict[str, Any]:
    metadata = {"function_name": "execute_bash", "tool_call_id": call_id}
    metadata["model_response"] = made or response(f"r{own}", f"step {own}", call_id)  # type: ignore[assignment]
    return {"id": own, "source": "agent", "action": action, "args": args, "tool_call_metadata": metadata}


def sees(own: int, cause: int | None, text: Any, kind: str = "run", code: int | None = None) -> dict[str, Any]:
    extras = {"metadata": {"exit_code": code}}
    event = {"id": own, "source": "agent", "observation": kind, "content": text, "extras": extras}
    return event if cause is None else event | {"cause": cause}


def says(own: int, text: str) -> dict[str, Any]:
    return {"id": own, "source": "agent", "action": "message", "args": {"content": text}}


# --- the shared files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "turns", "states"),
    [(SHORT, 2, {"tool_result": 1}), (GUI, 5, {"terminal_output": 2, "tool_result": 2})],
)
def test_the_shared_histories_are_all_there(
    shared_dir: Path, tmp_path: Path, file: str, turns: int, states: dict[str, int]
) -> None:
    """Counted by eye, and again by who acts in the raw events: an action of the agent is a turn, and what names it as
    its cause its next state, unless it observes nothing."""
    path = shared_dir / "data" / file
    raw = json.loads(path.read_text())
    acting = [event["id"] for event in raw if event["source"] == "agent" and "action" in event]
    seen = [event for event in raw if event.get("cause") in acting and event["observation"] != "null"]
    assert (len(acting), len(seen)) == (turns, sum(states.values()))
    read = Imported(openhands_history, path)
    assert read.counts() == {"sessions": 1, "turns": turns, "next_states": states, "verdicts": 0, "refused": 0}
    assert [state.content for state in read.states] == [event["content"] for event in seen]
    assert {turn.policy.name for turn in read.turns} == {"claude-3-5-sonnet-20241022"}
    assert read.parents() == [None, *range(turns - 1)]
    messages = [
        event["tool_call_metadata"]["model_response"]["choices"][0]["message"]
        for event in raw
        if event["id"] in acting and "tool_call_metadata" in event
    ]
    made = [call["function"]["arguments"] for message in messages for call in message["tool_calls"]]
    assert [call.arguments for turn in read.turns for call in turn.response.tool_calls] == made
    assert same_events(openhands_history, path, path)
    one_line = tmp_path / "other.json"
    one_line.write_text(json.dumps(raw))
    assert [event.id for event in Imported(openhands_history, one_line).events] == [event.id for event in read.events]


def test_exit_codes_and_the_text_null_of_the_shared_history(shared_dir: Path) -> None:
    read = Imported(openhands_history, shared_dir / "data" / GUI)
    # The server that never ended has -1 in the file, which is no exit code.
    assert [state.exit_code for state in read.states] == [0, None, None, None]
    assert [state.kind for state in read.states] == ["terminal_output", "tool_result", "tool_result", "terminal_output"]
    assert [turn.finish_reason for turn in read.turns] == ["tool_calls"] * 4 + ["stop"]
    assert read.asked(0)[0][0] == "user"


def test_the_shared_files_are_told_by_their_content(shared_dir: Path) -> None:
    data = shared_dir / "data"
    known = {str(path.relative_to(data)) for path in data.rglob("*.*") if openhands_history.sniff(head_of(path))}
    assert known == {SHORT, GUI}


# --- turns ----------------------------------------------------------------------------------------------------------


def test_a_conversation(read: Read) -> None:
    tool = {"type": "function", "function": {"name": "execute_bash"}}
    system = {"id": 0, "source": "agent", "action": "system", "args": {"content": "You work.", "tools": [tool]}}
    got = read(
        system,
        user(1, "go"),
        {"id": 2, "source": "user", "action": "recall", "args": {"query": "go"}},
        {"id": 3, "source": "environment", "cause": 2, "observation": "recall", "content": "x", "extras": {}},
        acts(4, "x"),
        sees(5, 4, "null", code=2),
        says(6, "Done."),
        {"id": 7, "source": "agent", "cause": 6, "observation": "null", "content": "", "extras": {}},
        user(8, "thanks", image_urls=["data:image/png;base64,QUJD"]),
    )
    assert [(text, len(answers)) for text, answers in got.answers()] == [("step 4", 1), ("Done.", 1)]
    assert [(s.kind, s.exit_code) for s in got.states] == [("terminal_output", 2), ("user_reply", None)]
    assert got.states[0].content == "null"
    assert (got.states[1].content or "").startswith("thanks\n[image image/png sha256:")
    assert [turn.tools for turn in got.turns] == [[tool], [tool]]
    assert got.asked(1) == [("system", "You work."), ("user", "go"), ("assistant", "step 4"), ("tool", "null")]
    assert got.refused == []


def test_calls_made_at_once_are_one_turn_though_they_run_one_by_one(read: Read) -> None:
    made = response("r", "Both.", "x", "y")
    got = read(user(0, "go"), acts(1, "x", made), sees(2, 1, ""), acts(3, "y", made), sees(4, 3, ""), says(5, "k"))
    assert got.answers() == [("Both.", ["", ""]), ("k", [])]
    assert len(got.turns[0].response.tool_calls) == 2
    assert [text for _, text in got.asked(1)] == ["go", "Both.", "", ""]


def test_order_comes_from_ids(read: Read) -> None:
    rows = [user(0, "go"), acts(2, "x"), sees(3, 2, "one"), says(7, "Done.")]
    expected = [("step 2", ["one"]), ("Done.", [])]
    assert read(*rows).answers() == expected
    assert read(*reversed(rows)).answers() == expected


def test_ids_that_repeat_mean_the_latest_action(read: Read) -> None:
    got = read(user(0, "go"), acts(1, "x", response("q", "one", "x")), sees(2, 1, "a"), acts(1, "x"), sees(4, 1, "b"))
    assert got.answers() == [("one", ["a"]), ("step 1", ["b"])]


def test_a_history_of_pairs_needs_no_ids(read: Read) -> None:
    def bare(event: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in event.items() if key not in ("id", "cause", "tool_call_metadata")}

    action = bare(acts(0, "x", command="ls", thought="I look."))
    got = read([bare(user(0, "go")), bare(sees(0, None, "", "null"))], [action, bare(sees(0, None, "files"))])
    assert got.answers() == [("I look.", ["files"])]
    assert [(c.id, c.name, c.arguments) for c in got.turns[0].response.tool_calls] == [
        (None, "run", '{"command": "ls"}')
    ]


def test_delegated_work_is_side_turns(read: Read) -> None:
    got = read(
        user(0, "go"),
        acts(1, "x", action="delegate", agent="BrowsingAgent", inputs={"task": "look it up"}),
        acts(2, "y", action="browse"),
        sees(3, 2, "a page", "browse"),
        says(4, "found"),
        sees(5, 1, "it says so", "delegate"),
        says(6, "Done."),
    )
    assert [(turn.kind, turn.response.content) for turn in got.turns] == [
        ("main", "step 1"),
        ("side", "step 2"),
        ("side", "found"),
        ("main", "Done."),
    ]
    assert got.asked(1) == [("user", "look it up")]
    assert [text for _, text in got.asked(3)] == ["go", "step 1", "it says so"]
    assert got.parents() == [None, None, 1, 0]
    assert [state.kind for state in got.states] == ["tool_result", "gui_change"]


def test_condensation_forgets_a_range_or_a_list(read: Read) -> None:
    for args in (
        {"forgotten_events_start_id": 1, "forgotten_events_end_id": 2},
        {"forgotten_event_ids": [1, 2]},
    ):
        condensed = {"action": "condensation", "source": "agent", "id": 3, "args": args}
        condensed["args"] = args | {"summary": "It looked.", "summary_offset": 1}
        got = read(user(0, "go"), acts(1, "x"), sees(2, 1, "one"), condensed, says(4, "Done."))
        assert [text for _, text in got.asked(1)] == ["go", "It looked."]
        assert got.refused == []


# --- files of many histories ------------------------------------------------------------------------------------------


def test_a_file_of_histories_with_verdicts(tmp_path: Path) -> None:
    history = [user(0, "go"), acts(1, "x"), sees(2, 1, "one")]
    rows = [
        {"instance_id": "a", "history": history, "test_result": {"report": {"resolved": True}}},
        {"instance_id": "b", "history": history, "test_result": {"report": {"resolved": False}, "git_patch": "SECRET"}},
        {"instance_id": "c", "history": [[history[0]], history[1:]], "test_result": {}},
        {"instance_id": "a", "history": history, "test_result": {"report": {"resolved": True}}},
        {"instance_id": "d"},
        "{",
    ]
    path = write_lines(tmp_path / "output.jsonl", rows)
    assert openhands_history.sniff(head_of(path))
    got = Imported(openhands_history, path)
    assert got.counts() == {
        "sessions": 3,
        "turns": 3,
        "next_states": {"terminal_output": 3, "test_verdict": 2},
        "verdicts": 2,
        "refused": 3,
    }
    assert [state.verdict for state in got.states if state.kind == "test_verdict"] == [1.0, 0.0]
    assert [(row.line, row.reason.partition(":")[0][:20]) for row in got.refused] == [
        (4, "repeats the history "),
        (5, "a JSON object withou"),
        (6, "not JSON at column 2"),
    ]
    assert [closed.origin.line for closed in got.closed if closed.origin] == [1, 2, 3]
    assert "SECRET" not in str(got.events)


def test_one_history_over_many_lines(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    rows = {"history": [user(0, "go"), says(1, "Hi.")], "metadata": {"llm_config": {"model": "m"}}}
    path.write_text(json.dumps(rows, indent=2))
    assert openhands_history.sniff(head_of(path))
    got = Imported(openhands_history, path)
    assert got.answers() == [("Hi.", [])]
    assert got.turns[0].policy.name == "m"


# --- what cannot be read --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (sees(9, 77, "one"), "the action 77, which is not before it"),
        (sees(9, 1, 5), "`content` is a JSON number"),
        ({"id": 9, "source": "agent"}, "neither `action` nor `observation`"),
        (5, "a JSON number, not an object"),
    ],
)
def test_an_event_that_makes_no_sense_is_refused_alone(read: Read, bad: Any, reason: str) -> None:
    got = read(user(0, "go"), acts(1, "x"), bad, sees(10, 1, "ok"))
    (refused,) = got.refused
    assert reason in refused.reason
    assert got.answers() == [("step 1", ["ok"])]


def test_what_follows_an_answer_that_could_not_be_read_is_about_no_older_one(read: Read) -> None:
    bad = acts(3, "y", {"id": "r", "choices": [{"message": {"content": 5}}]})
    got = read(user(0, "go"), says(1, "Hi."), user(2, "more"), bad, sees(4, 3, "one"), user(5, "bad"), says(6, "Ok."))
    assert got.answers() == [("Hi.", ["more"]), ("Ok.", [])]
    assert len(got.refused) == 2


def test_a_list_that_breaks_off_keeps_what_is_whole(read: Read, tmp_path: Path) -> None:
    whole = read(user(0, "go"), acts(1, "x"), sees(2, 1, "one"), says(3, "Done."))
    text = (tmp_path / "history.json").read_text()
    path = tmp_path / "cut.json"
    path.write_text(text[: text.index("Done.")])
    cut = Imported(openhands_history, path)
    assert [turn.messages for turn in cut.turns] == [turn.messages for turn in whole.turns[:1]]
    assert len(cut.refused) == 1


def test_a_file_without_an_answer_says_so(read: Read) -> None:
    assert [row.reason for row in read(user(0, "go")).refused] == [
        "no event is an answer of the agent, so there is no turn"
    ]


def test_an_empty_file_says_so(tmp_path: Path) -> None:
    assert [row.reason for row in Imported(openhands_history, write_lines(tmp_path / "x.json", [])).refused] == [
        "the file is empty"
    ]
