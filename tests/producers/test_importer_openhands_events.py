"""OpenHands SDK events: the shared file is all there; parallel calls, condensation, people who reject."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from producers.importers import openhands_events
from producers.importers.detect import head_of
from tests.producers.imported import Imported, same_events, write_lines

RECORDED = "openhands/sdk_events.jsonl"
Read = Callable[..., Imported]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Writes events as a conversation and reads them."""

    def rows_read(*rows: Any) -> Imported:
        return Imported(openhands_events, write_lines(tmp_path / "events.jsonl", rows))

    return rows_read


def event(kind: str, own: str, source: str = "environment", **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "id": own, "source": source, "timestamp": "2026-01-01T00:00:00", **fields}


def parts(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text, "cache_prompt": False}]


def says(own: str, text: str, *, source: str = "agent", **fields: Any) -> dict[str, Any]:
    message = {"role": "assistant" if source == "agent" else "user", "content": parts(text)}
    return event("MessageEvent", own, source, llm_message=message, **fields)


def user(own: str, text: str, **fields: Any) -> dict[str, Any]:
    return says(own, text, source="user", **fields)


def acts(own: str, call_id: str, thought: str = "", response: str | None = None, **fields: Any) -> dict[str, Any]:
    call = {"id": call_id, "name": "terminal", "arguments": '{"command": "ls"}'}
    fields = {"action": {"kind": "TerminalAction"}, "tool_name": "terminal", "tool_call": call} | fields
    return event(
        "ActionEvent",
        own,
        "agent",
        thought=parts(thought) if thought else [],
        tool_call_id=call_id,
        llm_response_id=response or f"resp_{own}",
        **fields,
    )


def sees(
    own: str, action: str, call_id: str, text: str, kind: str = "TerminalObservation", **more: Any
) -> dict[str, Any]:
    observation = {"kind": kind, "content": parts(text), **more}
    return event("ObservationEvent", own, action_id=action, tool_call_id=call_id, observation=observation)


# --- the shared file ----------------------------------------------------------------------------------------------


def test_the_shared_events_are_all_there(shared_dir: Path) -> None:
    """Counted from the text of the lines; one observation is about an action that the file lacks, and says so."""
    path = shared_dir / "data" / RECORDED
    lines = path.read_text().splitlines()
    read = Imported(openhands_events, path)
    assert read.counts() == {
        "sessions": 1,
        "turns": 2,
        "next_states": {"terminal_output": 2},
        "verdicts": 0,
        "refused": 1,
    }
    kinds = [line.rpartition('"kind":"')[2].rstrip('"}') for line in lines]
    assert [kinds.count(kind) for kind in ("ActionEvent", "ObservationEvent", "MessageEvent")] == [2, 3, 0]
    assert [turn.origin.line for turn in read.turns if turn.origin] == [4, 9]
    assert [row.line for row in read.refused] == [7]
    assert "'70274abb-c9e1-4914-b778-29464d7bf293', which is not in the file" in read.refused[0].reason
    # The command that could not be started has no exit code, the other's was 1.
    assert [state.exit_code for state in read.states] == [None, 1]
    assert {turn.policy.name for turn in read.turns} == {"litellm_proxy/minimax-m2.7"}
    raw = json.loads(lines[3])
    first = read.turns[0].response
    assert (first.content, first.reasoning) == (raw["thought"][0]["text"], raw["reasoning_content"])
    assert [(c.id, c.name, c.arguments) for c in first.tool_calls] == [
        (raw["tool_call_id"], "terminal", raw["tool_call"]["arguments"])
    ]
    assert read.parents() == [None, 0]
    data = shared_dir / "data"
    assert [str(p.relative_to(data)) for p in data.rglob("*.*") if openhands_events.sniff(head_of(p))] == [RECORDED]
    assert same_events(openhands_events, path, path)


# --- turns ----------------------------------------------------------------------------------------------------------


def test_a_conversation(read: Read) -> None:
    tool = {"type": "function", "function": {"name": "terminal", "parameters": {}}}
    got = read(
        event("SystemPromptEvent", "s", "agent", system_prompt=parts("You work.")[0], tools=[tool, {"kind": "Odd"}]),
        user("u", "go"),
        acts("a", "x", "I look."),
        sees("o", "a", "x", "null", exit_code=0),
        says("b", "Done."),
        user("v", "thanks"),
    )
    assert got.answers() == [("I look.", ["null"]), ("Done.", ["thanks"])]
    assert [(s.kind, s.exit_code) for s in got.states] == [("terminal_output", 0), ("user_reply", None)]
    assert [turn.finish_reason for turn in got.turns] == ["tool_calls", "stop"]
    assert [turn.tools for turn in got.turns] == [[tool], [tool]]
    assert got.asked(1) == [("system", "You work."), ("user", "go"), ("assistant", "I look."), ("tool", "null")]


def test_parallel_calls_share_a_response(read: Read) -> None:
    got = read(
        user("u", "go"),
        acts("a1", "x", "Both.", response="r"),
        acts("a2", "y", response="r"),
        sees("o2", "a2", "y", "two"),
        sees("o1", "a1", "x", "one"),
        acts("b", "z", "Next."),
    )
    assert got.answers() == [("Both.", ["two", "one"]), ("Next.", [])]
    assert [call.id for call in got.turns[0].response.tool_calls] == ["x", "y"]


def test_a_call_id_used_again_is_told_by_the_action(read: Read) -> None:
    rows = [acts("a", "x", "One."), acts("b", "x", "Two."), sees("o", "a", "x", "one"), sees("p", "b", "x", "two")]
    assert read(*rows).answers() == [("One.", ["one"]), ("Two.", ["two"])]


def test_an_observation_that_stands_before_its_action_finds_it(read: Read) -> None:
    got = read(user("u", "go"), sees("o", "a", "x", "one"), acts("a", "x", "Look."), says("b", "Done."))
    assert got.answers() == [("Look.", ["one"]), ("Done.", [])]
    assert got.asked(1)[-1] == ("tool", "one")


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [
        ("ExecuteBashObservation", {"exit_code": -1}, ("terminal_output", "k", None)),
        ("TerminalObservation", {"exit_code": None, "metadata": {"exit_code": 3}}, ("terminal_output", "k", 3)),
        ("FileEditorObservation", {}, ("tool_result", "k", None)),
        ("BrowserObservation", {"screenshot_data": "QUJD"}, ("gui_change", "k\n[image sha256:", None)),
    ],
)
def test_kinds_of_observations(read: Read, kind: str, more: dict[str, Any], expected: tuple[str, str, int]) -> None:
    (state,) = read(acts("a", "x"), sees("o", "a", "x", "k", kind=kind, **more)).states
    assert (state.kind, (state.content or "")[: len(expected[1])], state.exit_code) == expected


def test_errors_and_rejections_answer_the_call(read: Read) -> None:
    error = event("AgentErrorEvent", "e", "agent", tool_call_id="x", tool_name="terminal", error="bad arguments")
    rejected = event("UserRejectObservation", "r", action_id="b", tool_call_id="y", rejection_reason="not that")
    hook = rejected | {"id": "h", "action_id": "c", "tool_call_id": "z", "rejection_source": "hook"}
    got = read(acts("a", "x", action=None), error, acts("b", "y"), rejected, acts("c", "z"), hook)
    assert [(s.kind, s.content) for s in got.states] == [
        ("tool_result", "bad arguments"),
        ("user_reply", "not that"),
        ("tool_result", "not that"),
    ]


def test_machines_that_speak_as_users_are_no_people(read: Read) -> None:
    got = read(
        says("a", "Hi."),
        says("m", "a hook ran", source="environment"),
        user("n", "from the other agent", sender="planner"),
        user("v", "more", extended_content=parts("<skill>")),
        says("b", "Ok."),
    )
    assert got.answers() == [("Hi.", ["more"]), ("Ok.", [])]
    assert [text for _, text in got.asked(1)] == ["Hi.", "a hook ran", "from the other agent", "more\n<skill>"]


def test_condensation_forgets_what_it_names(read: Read) -> None:
    got = read(
        event("SystemPromptEvent", "s", "agent", system_prompt=parts("You work.")[0]),
        user("u", "go"),
        acts("a1", "x", "One.", response="r"),
        acts("a2", "y", response="r"),
        sees("o1", "a1", "x", "one"),
        sees("o2", "a2", "y", "two"),
        event("Condensation", "c", forgotten_event_ids=["a1", "o1"], summary="It looked.", summary_offset=1),
        says("b", "Two."),
        event("Condensation", "d", forgotten_event_ids=["a1", "a2", "o1", "o2", "u"], summary=None),
        says("e", "Three."),
    )
    # An answer is forgotten only with all of its actions.
    assert [text for _, text in got.asked(1)] == ["You work.", "It looked.", "go", "One.", "two"]
    assert [text for _, text in got.asked(2)] == ["You work.", "It looked.", "Two."]
    assert got.parents() == [None, 0, 1]


def test_interrupted_and_failed_requests_take_the_next_words(read: Read) -> None:
    for stop in (event("InterruptEvent", "i", "user"), event("ConversationErrorEvent", "i", code="x", detail="y")):
        got = read(says("a", "Hi."), user("v", "more"), stop, user("w", "bad"), says("b", "Ok."))
        assert got.answers() == [("Hi.", ["more"]), ("Ok.", [])]
    got = read(says("a", "Hi"), event("InterruptEvent", "i", "user"), user("w", "bad"))
    assert [turn.finish_reason for turn in got.turns] == ["aborted"]
    got = read(acts("a", "x"), event("InterruptEvent", "i", "user"), user("w", "not that"))
    assert (got.turns[0].finish_reason, got.answers()) == ("tool_calls", [(None, ["not that"])])


def test_the_model_is_the_one_named_last(read: Read) -> None:
    def named(own: str, **value: Any) -> dict[str, Any]:
        return event("ConversationStateUpdateEvent", own, key="k", value=value)

    got = read(
        says("a", "One."),
        named("n", agent={"llm": {"model": "m1"}}),
        says("b", "Two."),
        named("o", usage_to_metrics={"default": {"model_name": "m2"}}),
        says("c", "Three."),
    )
    assert [turn.policy.name for turn in got.turns] == ["m1", "m1", "m2"]


def test_a_json_list_is_read_too(read: Read, tmp_path: Path) -> None:
    rows = [user("u", "go"), acts("a", "x", "Look."), sees("o", "a", "x", "one")]
    path = tmp_path / "events.json"
    path.write_text(json.dumps(rows, indent=1))
    assert openhands_events.sniff(head_of(path))
    assert [e.id for e in Imported(openhands_events, path).events] == [e.id for e in read(*rows).events]


# --- what cannot be read --------------------------------------------------------------------------------------------


def test_an_answer_with_an_unreadable_event_is_refused(read: Read) -> None:
    broken = json.dumps(acts("a2", "y", response="r"))[:-3]
    got = read(
        says("z", "Before."),
        user("u", "go"),
        acts("a1", "x", "Both.", response="r"),
        broken,
        sees("o", "a1", "x", "one"),
        user("v", "bad"),
        says("b", "Ok."),
    )
    assert [row.line for row in got.refused] == [3, 4, 5]
    assert got.answers() == [("Before.", ["go"]), ("Ok.", [])]


def test_an_observation_of_an_unreadable_action_that_stood_before_it_is_refused(read: Read) -> None:
    got = read(sees("o", "a", "x", "one"), acts("a", "x", tool_call={"id": 5, "name": "f"}), says("b", "Ok."))
    assert [row.line for row in got.refused] == [1, 2]
    assert got.answers() == [("Ok.", [])]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (sees("o", "zz", "x", "one"), "'zz', which is not in the file"),
        (event("AgentErrorEvent", "o", tool_call_id="zz", error="e"), "no answer before it made the tool call 'zz'"),
        (event("ObservationEvent", "o", action_id="a", tool_call_id="x"), "neither `observation` nor `error`"),
        (event("MessageEvent", "o", "user"), "`llm_message` is no object"),
        ({"id": "o"}, "no `kind`"),
        ("7", "a JSON number, not an object"),
    ],
)
def test_an_event_that_makes_no_sense_is_refused_alone(read: Read, bad: Any, reason: str) -> None:
    got = read(user("u", "go"), acts("a", "x"), bad, sees("p", "a", "x", "ok"))
    (refused,) = got.refused
    assert refused.line == 3
    assert reason in refused.reason
    assert got.answers() == [(None, ["ok"])]


def test_a_file_without_an_answer_says_so(read: Read) -> None:
    assert [one.reason for one in read(user("u", "go")).refused] == [
        "the file has no event of an answer, so there is no turn"
    ]
