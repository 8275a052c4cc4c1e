"""SWE-agent: the three shared files are all there, requests are what was sent, and a broken step costs only itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from producers.importers import IMPORTERS, RefusedRow
from schemas.envelope import Event, decode, encode
from schemas.events import NextStateObserved, SessionClosed, ToolCall, TurnRecorded

READ = IMPORTERS["swe-agent"].read
FOLDER = Path(__file__).parents[3] / "shared/data/swe_agent"
OLD, CALLING, SHORT = "i_got_id_demo_v0.traj", "marshmallow-1867_function_calling.traj", "test-repo-1c2844.traj"
needs_files = pytest.mark.skipif(not FOLDER.exists(), reason=f"the shared sample data are not at {FOLDER}")

Write = Callable[[Any], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(content: Any) -> Path:
        path = tmp_path / "run.traj"
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
        return path

    return to_file


def turns_of(path: Path) -> list[TurnRecorded]:
    return [row.data for row in READ(path) if isinstance(row, Event) and isinstance(row.data, TurnRecorded)]


def states_of(path: Path) -> list[NextStateObserved]:
    return [row.data for row in READ(path) if isinstance(row, Event) and isinstance(row.data, NextStateObserved)]


def refused_of(path: Path) -> list[RefusedRow]:
    return [row for row in READ(path) if isinstance(row, RefusedRow)]


def step(response: str, observation: Any = "done", action: str = "ls", **more: Any) -> dict[str, Any]:
    return {"response": response, "thought": response, "action": action, "observation": observation, **more}


def said(content: str, action: str = "ls", call_id: str | None = "c") -> dict[str, Any]:
    message = {"role": "assistant", "content": content, "action": action, "thought": content, "agent": "main"}
    if call_id is None:
        return message
    calls = [{"id": call_id, "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}]
    return message | {"tool_calls": calls}


def saw(content: str, call_id: str = "c") -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_ids": [call_id], "message_type": "observation"}


START = [
    {"role": "system", "content": "you are", "agent": "main", "message_type": "system_prompt"},
    {"role": "user", "content": "fix it", "agent": "main"},
]
SENT_START = [{"role": "system", "content": "you are"}, {"role": "user", "content": "fix it"}]


# --- the shared files; the numbers were counted with grep over their lines ----------------------------------------


@needs_files
@pytest.mark.parametrize(("name", "steps"), [(OLD, 21), (CALLING, 11), (SHORT, 5)])
def test_every_step_of_the_shared_files_is_there(name: str, steps: int) -> None:
    path = FOLDER / name
    assert refused_of(path) == []
    turns, states = turns_of(path), states_of(path)
    assert (len(turns), len(states)) == (steps, steps)
    assert {state.kind for state in states} == {"terminal_output"}
    assert [state.turn_id for state in states] == [turn.turn_id for turn in turns]
    raw = json.loads(path.read_text())["trajectory"]
    assert [state.content for state in states] == [row["observation"] for row in raw]
    assert [turn.response.content for turn in turns] == [row["response"] for row in raw]
    assert all(state.verdict is None and state.exit_code is None for state in states)
    closed = [row.data for row in READ(path) if isinstance(row, Event) and isinstance(row.data, SessionClosed)]
    assert [(data.turns, data.next_states) for data in closed] == [(steps, steps)]


@needs_files
@pytest.mark.parametrize("name", [OLD, CALLING, SHORT])
def test_the_request_of_every_step_is_the_history_before_its_answer(name: str) -> None:
    """In these files message 0 is the system prompt, 1 the task, then answer and observation in turn."""
    history = json.loads((FOLDER / name).read_text())["history"]
    for index, turn in enumerate(turns_of(FOLDER / name)):
        before = history[: 2 + 2 * index]
        assert [(m["role"], m["content"]) for m in turn.messages] == [(m["role"], m["content"]) for m in before]
        assert {key for m in turn.messages for key in m} <= {"role", "content", "tool_calls", "tool_call_id"}
        assert [m.get("tool_calls") for m in turn.messages] == [m.get("tool_calls") for m in before]


@needs_files
def test_function_calls_keep_ids_and_raw_arguments() -> None:
    turns, states = turns_of(FOLDER / CALLING), states_of(FOLDER / CALLING)
    assert {turn.finish_reason for turn in turns} == {"tool_calls"}
    assert turns[0].response.tool_calls == [
        ToolCall(id="call_cyI71DYnRdoLHWwtZgIaW2wr", name="create", arguments='{"filename":"reproduce.py"}')
    ]
    assert [s.tool_call_id for s in states] == [turn.response.tool_calls[0].id for turn in turns]
    # One id stands at steps 2, 3, 8 and 9, and each has its own output.
    again = [i for i, s in enumerate(states) if s.tool_call_id == "call_5iDdbOYybq7L19vqXmR0DPaU"]
    assert again == [2, 3, 8, 9]
    assert [states[i].content for i in (2, 8, 9)] == ["344", "345", ""]
    assert {state.role for state in states} == {"tool"}


@needs_files
def test_who_answered_is_what_the_file_says() -> None:
    for name, policy, sampling in [
        (OLD, "unknown", {}),
        (CALLING, "gpt-4o", {"temperature": 1.0, "top_p": 1.0}),
        (SHORT, "gpt-4o", {"temperature": 1.0, "top_p": 1.0}),
    ]:
        assert {turn.policy.name for turn in turns_of(FOLDER / name)} == {policy}
        assert all(turn.sampling == sampling for turn in turns_of(FOLDER / name))


@needs_files
def test_the_old_format_has_text_answers_and_user_observations() -> None:
    turns, states = turns_of(FOLDER / OLD), states_of(FOLDER / OLD)
    assert {turn.finish_reason for turn in turns} == {"stop"}
    assert {state.role for state in states} == {"user"}
    assert all(turn.response.tool_calls == [] for turn in turns)
    # The answer of step 19 was edited by hand: the turn says what the step says, the next request what was sent.
    assert turns[20].messages[-2]["content"] != turns[19].response.content


@needs_files
def test_a_last_step_that_history_lacks_keeps_its_command() -> None:
    last = turns_of(FOLDER / SHORT)[-1]
    assert last.response.tool_calls == [ToolCall(id=None, name="action", arguments="submit")]
    assert (len(last.messages), last.finish_reason) == (10, "tool_calls")
    assert states_of(FOLDER / SHORT)[-1].tool_call_id is None


@needs_files
@pytest.mark.parametrize("name", [OLD, CALLING, SHORT])
def test_twice_and_renamed_gives_the_same(name: str, tmp_path: Path) -> None:
    first = [row for row in READ(FOLDER / name) if isinstance(row, Event)]
    again = [row for row in READ(FOLDER / name) if isinstance(row, Event)]
    assert [encode(event) for event in first] == [encode(event) for event in again]
    moved = tmp_path / "other.traj"
    moved.write_text(json.dumps(json.loads((FOLDER / name).read_text())))
    renamed = [row for row in READ(moved) if isinstance(row, Event)]
    assert [(e.id, e.content_digest()) for e in renamed] == [(e.id, e.content_digest()) for e in first]
    for event in first:
        record = encode(event)
        assert decode(record.value, record.headers) == event
    assert len({event.id for event in first}) == len(first)


@needs_files
def test_origins_name_the_line_of_the_step() -> None:
    lines = (FOLDER / CALLING).read_text().splitlines()
    for turn in turns_of(FOLDER / CALLING):
        assert turn.origin is not None
        assert lines[turn.origin.line - 1] == "        {"
        assert '"action"' in lines[turn.origin.line]


@needs_files
@pytest.mark.parametrize("name", [OLD, CALLING, SHORT])
def test_a_file_cut_anywhere_is_told_and_keeps_what_can_be_told_for_sure(name: str, tmp_path: Path) -> None:
    text = (FOLDER / name).read_text()
    whole = turns_of(FOLDER / name)
    path = tmp_path / "cut.traj"
    kept = set()
    for share in (0.0001, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 0.9999):
        path.write_text(text[: int(len(text) * share)])
        assert refused_of(path)
        turns = turns_of(path)
        kept.add(len(turns))
        for cut, full in zip(turns, whole, strict=False):
            assert (cut.messages, cut.response) == (full.messages, full.response)
    assert max(kept) == len(whole)


# --- where requests come from -------------------------------------------------------------------------------------


def test_query_says_what_was_sent_better_than_history(write: Write) -> None:
    query = [{"role": "user", "content": "shortened", "agent": "main", "cache_control": {"type": "ephemeral"}}]
    path = write({"trajectory": [step("one", query=query)], "history": [*START, said("one")]})
    (turn,) = turns_of(path)
    assert turn.messages == [{"role": "user", "content": "shortened"}]
    assert turn.response.tool_calls[0].id == "c"


def test_demonstrations_are_sent_but_are_nobodys_answer(write: Write) -> None:
    demo = [said("one") | {"is_demo": True}, saw("shown") | {"is_demo": True}]
    path = write({"trajectory": [step("one")], "history": [START[0], *demo, START[1], said("one")]})
    (turn,) = turns_of(path)
    assert [message["content"] for message in turn.messages] == ["you are", "one", "shown", "fix it"]


def test_a_second_step_that_history_lacks_is_refused(write: Write) -> None:
    path = write({"trajectory": [step("a"), step("b", action="x"), step("c", action="y")], "history": [*START]})
    (turn,) = turns_of(path)
    assert turn.messages == SENT_START
    assert [(r.reason.partition(": ")[0], "neither this step nor step" in r.reason) for r in refused_of(path)] == [
        ("step 1", True),
        ("step 2", True),
    ]


def test_a_step_that_was_asked_again_does_not_shift_the_others(write: Write) -> None:
    history = [*START, said("good", "run"), saw("ran"), said("better", "submit")]
    steps = [step("malformed", None, ""), step("good", "ran", "run"), step("better", "", "submit")]
    path = write({"trajectory": steps, "history": history})
    assert refused_of(path) == []
    assert [len(turn.messages) for turn in turns_of(path)] == [2, 2, 4]
    assert [s.content for s in states_of(path)] == ["ran", ""]


def test_without_history_and_query_no_request_is_made_up(write: Write) -> None:
    path = write({"trajectory": [step("a"), step("b")]})
    assert turns_of(path) == []
    assert len(refused_of(path)) == 2
    assert "no list `history` and no `query`" in refused_of(path)[0].reason


def test_a_run_ended_by_swe_agent_is_an_aborted_turn(write: Write) -> None:
    path = write(
        {"trajectory": [step("one"), step("", "", "exit_context")], "history": [*START, said("one"), saw("done")]}
    )
    assert [turn.finish_reason for turn in turns_of(path)] == ["tool_calls", "aborted"]


def test_a_replay_config_in_a_string_is_read_and_its_secrets_are_not(write: Write) -> None:
    model = {"name": "m", "temperature": 0, "top_p": None, "api_key": "SECRET"}
    config = json.dumps({"agent": {"model": model}})
    path = write({"trajectory": [step("a")], "history": [*START, said("a")], "replay_config": config})
    (turn,) = turns_of(path)
    assert (turn.policy.name, turn.sampling) == ("m", {"temperature": 0.0})
    assert not any(b"SECRET" in encode(row).value for row in READ(path) if isinstance(row, Event))


# --- refused rows -------------------------------------------------------------------------------------------------

BAD_STEPS = {
    "no object": ("text", "a JSON string, not an object", False),
    "no response": ({"observation": "x"}, "no `response`", False),
    "response is a number": (step(5), "`response` is a JSON number", False),  # type: ignore[arg-type]
    "query is text": (step("two", query="x"), "`query` is not a list", False),
    "no observation": ({"response": "two", "action": "ls"}, "no `observation`", True),
    "observation is a list": (step("two", ["x"]), "`observation` is a JSON list", True),
}


@pytest.mark.parametrize("name", BAD_STEPS)
def test_a_bad_step_is_listed_and_the_others_go_in(write: Write, name: str) -> None:
    bad, reason, has_turn = BAD_STEPS[name]
    history = [*START, said("one"), saw("done"), said("two"), saw("done"), said("three"), saw("done")]
    path = write({"trajectory": [step("one"), bad, step("three")], "history": history})
    (refused,) = refused_of(path)
    assert refused.reason.startswith("step 1: ")
    assert reason in refused.reason
    line = path.read_text().splitlines()[refused.line - 1]
    assert line.strip() == ("{" if isinstance(bad, dict) else '"text",')
    contents = [turn.response.content for turn in turns_of(path)]
    assert contents == (["one", "two", "three"] if has_turn else ["one", "three"])
    assert len(turns_of(path)[-1].messages) == 6
    assert len(states_of(path)) == 2


def test_no_observation_is_no_next_state(write: Write) -> None:
    path = write({"trajectory": [step("one", None)], "history": [*START, said("one")]})
    assert refused_of(path) == []
    assert states_of(path) == []


def test_nul_in_an_observation_goes_in(write: Write) -> None:
    path = write({"trajectory": [step("one", "a\x00b")], "history": [*START, said("one")]})
    record = encode(next(row for row in READ(path) if isinstance(row, Event) and "next_state" in row.type))
    data = decode(record.value, record.headers).data
    assert isinstance(data, NextStateObserved)
    assert (data.content, data.sanitised) == ("a�b", True)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "the file is not JSON"),
        ("[]", 1, "a JSON list, not the object"),
        ("{}", 1, "no list `trajectory`"),
        ('{\n"trajectory": {}}', 1, "no list `trajectory`"),
        ('{"trajectory": []}', 1, "`trajectory` is empty"),
        ("{1: 2}", 1, "a field's name in double quotes"),
        ('{"a": 1\n"b": 2}', 2, "Expecting ','"),
    ],
)
def test_a_file_that_is_no_trajectory_says_so(write: Write, text: str, line: int, reason: str) -> None:
    rows = list(READ(write(text)))
    assert all(isinstance(row, RefusedRow) for row in rows)
    first = rows[0]
    assert isinstance(first, RefusedRow)
    assert reason in first.reason
    assert first.line == line or f"line {line}" in first.reason
