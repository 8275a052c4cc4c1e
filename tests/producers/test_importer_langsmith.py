"""LangSmith: the event stream of a managed session, and runs of any framework with their feedback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from producers.importers import langsmith
from producers.importers.detect import Head
from tests.producers.imported import Imported, write_lines

FILE = "data/langsmith/anthropic_managed_custom_tools.jsonl"
API = "client.beta.sessions."
Read = Callable[..., Imported]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Writes rows as JSON lines and reads them."""

    def rows_read(*rows: Any) -> Imported:
        return Imported(langsmith, write_lines(tmp_path / "log.jsonl", rows))

    return rows_read


# --- the event stream ------------------------------------------------------------------------------------------------


def event(kind: str, key: str, **more: Any) -> list[Any]:
    return [API + "events.stream", {"id": key, "type": kind} | more]


def text(said: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": said}]


def create(name: str = "s", **agent: Any) -> list[Any]:
    return [API + "create", {"id": name, "agent": agent}]


def sent(name: str, *events: Any) -> list[Any]:
    return [API + "events.send", [name, {"events": list(events)}]]


START, END = "span.model_request_start", "span.model_request_end"


def test_the_shared_file_counted_by_its_lines(shared_dir: Path) -> None:
    found = Imported(langsmith, shared_dir / FILE)
    lines = (shared_dir / FILE).read_text().splitlines()
    streamed = [line for line in lines if line.startswith('["client.beta.sessions.events.stream"')]
    requests = sum(f'"type":"{END}"' in line for line in streamed)
    results = sum('"type":"user.custom_tool_result"' in line for line in streamed)
    users = sum('"type":"user.message"' in line for line in streamed)
    assert (len(lines), len(streamed), requests, results, users) == (19, 16, 2, 1, 1)
    assert found.counts() == {
        "sessions": 1,
        "turns": requests,
        "next_states": {"tool_result": results},  # the one user message comes before any turn
        "verdicts": 0,
        "refused": 0,
    }


def test_what_the_shared_file_says(shared_dir: Path) -> None:
    found = Imported(langsmith, shared_dir / FILE)
    first, second = found.turns
    assert first.response.tool_calls[0].name == "get_weather"
    assert first.response.tool_calls[0].arguments == '{"location":"Prague"}'
    assert found.states[0].tool_call_id == first.response.tool_calls[0].id == "sevt_018iPB2RYrthWNKugV6ehDxH"
    assert found.states[0].content == "It's 23°C and sunny in Prague."
    assert (second.response.content or "").startswith("It's currently **23°C and sunny**")
    assert [turn.policy.name for turn in found.turns] == ["claude-sonnet-5"] * 2
    assert [message["role"] for message in second.messages] == ["system", "user", "assistant", "tool"]
    assert len(first.tools) == 2
    assert [turn.origin.line for turn in found.turns if turn.origin] == [7, 16]


def test_a_header_later_than_its_first_row_and_ids_that_repeat(read: Read) -> None:
    rows = [
        event("user.message", "1", content=text("q")),
        event(START, "2"),
        event("agent.message", "3", content=text("a")),
        event("agent.custom_tool_use", "x", name="f", input={"n": 1}),
        event("agent.custom_tool_use", "y", name="g", input={}),
        event(END, "4"),
        event("agent.message", "3", content=text("a")),
        sent("s", {"type": "user.custom_tool_result", "custom_tool_use_id": "x"}),
        event("user.custom_tool_result", "5", custom_tool_use_id="y", content=text("null")),
        event("agent.message", "6", content=text("b")),
        event("agent.message", "7", content=text("c")),
        event("user.message", "8", content=text("thanks")),
        event("user.message", "9", content=text("and?")),
        create("s", system="sys", model={"id": "m"}),
    ]
    found = read(*rows)
    assert found.answers() == [("a", ["null"]), ("b\nc", ["thanks"])], "x was never answered: only sent"
    assert found.asked(0) == [("system", "sys"), ("user", text("q"))]
    assert found.turns[0].policy.name == "m"
    assert found.turns[0].response.tool_calls[0].arguments == '{"n":1}'


def test_two_sessions_in_one_stream(read: Read) -> None:
    rows = []
    for name in ("s", "t"):
        rows += [create(name, system=name), event("agent.message", name, content=text(name))]
    rows += [sent("s"), event("user.message", "u", content=text("back"))]
    found = read(*rows)
    assert found.answers() == [("s", ["back"]), ("t", [])]
    assert len(found.closed) == 2


def test_bad_events_cost_themselves(read: Read) -> None:
    found = read(
        create("s"), event("agent.message", "1", content=text("a")), "[", {"x": 1},
        event("user.message", "2", content=None),
        event("agent.message", "3", content=5), event("user.message", "4", content=text("lost")),
        event("user.custom_tool_result", "5", content=text("r")), [API + "events.stream", {"id": "6"}],
        event("agent.message", "7", content=text("b")),
    )  # fmt: skip
    # Rows are refused as they are read, then what they say as it is put together.
    assert [one.line for one in found.refused] == [3, 4, 9, 5, 6, 7, 8]
    assert found.answers() == [("a", []), ("b", [])]
    assert "could not be read" in found.refused[5].reason
    nothing = read(create("s"), event("user.message", "1", content=text("q")))
    assert nothing.refused[0].reason == "the stream has no answer of the agent, so there is no turn"


# --- runs ------------------------------------------------------------------------------------------------------------


def lc(kind: str, content: Any, **kwargs: Any) -> dict[str, Any]:
    """A message as LangChain serialises it."""
    name = ["langchain", "schema", "messages", f"{kind}Message"]
    return {"lc": 1, "type": "constructor", "id": name, "kwargs": {"content": content} | kwargs}


def run(key: str, second: int, inputs: Any, outputs: Any, kind: str = "llm", **more: Any) -> dict[str, Any]:
    base = {
        "id": key,
        "trace_id": "root",
        "parent_run_id": "root",
        "run_type": kind,
        "name": "look",
        "dotted_order": f"20260101T000000000000Zroot.20260101T0000{second:02d}000000Z{key}",
        "inputs": inputs,
        "outputs": outputs,
    }
    return base | more


def llm(key: str, second: int, messages: list[Any], said: Any, **more: Any) -> dict[str, Any]:
    generation = {"generations": [[{"message": said, "generation_info": {"finish_reason": "stop"}}]]}
    return run(key, second, {"messages": [messages]}, generation, **more)


CALL = {"name": "look", "args": {"a": 1}, "id": "x", "type": "tool_call"}
ASK, ANSWER = lc("Human", "q"), lc("AI", "", tool_calls=[CALL])
ROOT = run(
    "root", 0, {"input": "q"}, {"output": "b"}, "chain", parent_run_id=None, dotted_order="20260101T000000000000Zroot"
)


def test_runs_counted_by_hand(read: Read) -> None:
    extra = {
        "metadata": {"ls_model_name": "m", "thread_id": "th"},
        "invocation_params": {"temperature": 0.5, "tools": [{"name": "look"}]},
    }
    shown = lc("Tool", "null", tool_call_id="x")
    feedback = {
        "correctness": {"n": 1, "avg": 1.0, "comments": ["right"]},
        "user_score": {"n": 2, "avg": 0.0},
        "note": {"n": 1, "avg": None},
    }
    found = read(
        llm("l2", 3, [lc("System", "s"), ASK, ANSWER, shown], lc("AI", "b")),
        run("t1", 2, {"input": "{'a': 1}"}, {"output": lc("Tool", "null", tool_call_id="x")}, "tool"),
        ROOT | {"feedback_stats": feedback},
        llm("l1", 1, [lc("System", "s"), ASK], ANSWER, extra=extra),
    )
    assert found.counts() == {
        "sessions": 1,
        "turns": 2,
        "next_states": {"tool_result": 1, "test_verdict": 1},
        "verdicts": 1,
        "refused": 0,
    }
    first, second = found.turns
    assert found.parents() == [None, 0]
    assert (first.policy.name, first.sampling, first.tools) == ("m", {"temperature": 0.5}, [{"name": "look"}])
    assert first.response.tool_calls[0].arguments == '{"a":1}'
    assert first.finish_reason == "tool_calls"
    assert found.states[0].content == "null"
    assert [(s.turn_id, s.content, s.verdict) for s in found.states[1:]] == [
        (second.turn_id, "correctness: 1 (right)", 1.0)
    ]
    assert [(g.turn_id, g.score) for g in found.feedback] == [(second.turn_id, -1.0)]


def test_runs_within_their_root_and_a_run_written_twice(read: Read) -> None:
    begun = llm("l1", 1, [ASK], lc("AI", "b")) | {"outputs": None}
    found = read(ROOT | {"child_runs": [begun]}, llm("l1", 1, [ASK], lc("AI", "b")))
    assert found.answers() == [("b", [])]


def test_a_tool_that_failed_and_one_that_never_came_back(read: Read) -> None:
    two = lc("AI", "", tool_calls=[CALL, CALL | {"id": "y", "args": {}}])
    found = read(
        ROOT, llm("l1", 1, [ASK], two),
        run("t1", 2, {"input": {"a": 1}}, None, "tool", error="ValueError: no"),
        run("t2", 3, {"input": {}}, None, "tool"),
    )  # fmt: skip
    assert [(s.tool_call_id, s.content) for s in found.states] == [("x", "ValueError: no")]


def test_openai_and_anthropic_runs(read: Read) -> None:
    chat = [{"role": "user", "content": "q"}]
    block = {"type": "tool_use", "id": "x", "name": "look", "input": {"a": 1}}
    reply = {"role": "assistant", "content": [{"type": "text", "text": "let me see"}, block], "stop_reason": "tool_use"}
    machine = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "x", "content": [{"type": "text", "text": "7"}]}],
    }
    done = {"choices": [{"message": {"role": "assistant", "content": "seven"}, "finish_reason": "length"}]}
    found = read(
        run("l1", 1, {"messages": chat, "system": "be brief"}, reply),
        run("l2", 2, {"messages": [*chat, reply, machine]}, done),
    )
    assert found.answers() == [("let me see", ["7"]), ("seven", [])]
    assert [state.kind for state in found.states] == ["tool_result"], "machine text in a user row is no reply"
    assert found.asked(0) == [("system", "be brief"), ("user", "q")]
    assert [turn.finish_reason for turn in found.turns] == ["tool_calls", "length"]


def test_threads_are_sessions_and_projects_are_not(read: Read) -> None:
    def one(trace: str, thread: str | None) -> dict[str, Any]:
        extra = {"metadata": {"session_id": thread}} if thread else {}
        more = {"trace_id": trace, "session_id": "project", "extra": extra, "parent_run_id": None}
        return llm(trace, 1, [ASK], lc("AI", trace), **more)

    found = read(one("a", "th"), one("b", "th"), one("c", None), one("d", None))
    assert [closed.turns for closed in found.closed] == [2, 1, 1]


def test_bad_runs_cost_themselves(read: Read) -> None:
    found = read(
        "{", llm("l1", 1, [ASK], lc("AI", "a")), {"id": "no type"}, run("l2", 2, {"messages": [7]}, {"output": "x"}),
        run("l3", 3, {}, None), run("l4", 4, {"messages": [ASK]}, None, error="Timeout"), 5,
    )  # fmt: skip
    assert [one.line for one in found.refused] == [1, 3, 7, 4, 5]
    assert [(turn.response.content, turn.finish_reason) for turn in found.turns] == [("a", "stop"), (None, "error")]


def test_what_is_taken_for_one() -> None:
    for value, ours in (
        (event("agent.message", "1"), True),
        (ROOT, True),
        ([ROOT], True),
        ({"run_type": "llm"}, False),
        (["a", {"b": 1}], False),
        ({"type": "agent.message"}, False),
    ):
        assert langsmith.sniff(Head("f", json.dumps(value).encode(), True)) is ours
