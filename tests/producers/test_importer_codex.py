"""Codex rollouts: items make answers, events repeat and say more, rollbacks are branches, machines are not people."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from producers.importers import codex
from producers.importers.detect import head_of
from tests.producers.imported import Imported, same_events, write_lines

FIXTURE = "codex/function_calls.jsonl"
Read = Callable[..., Imported]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Writes rows as a rollout and reads them."""

    def rows_read(*rows: Any) -> Imported:
        return Imported(codex, write_lines(tmp_path / "rollout.jsonl", rows))

    return rows_read


def row(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-01-01T00:00:00Z", "type": kind, "payload": payload}


def item(kind: str, **payload: Any) -> dict[str, Any]:
    return row("response_item", type=kind, **payload)


def event(kind: str, **payload: Any) -> dict[str, Any]:
    return row("event_msg", type=kind, **payload)


def user(*texts: str) -> dict[str, Any]:
    return item("message", role="user", content=[{"type": "input_text", "text": text} for text in texts])


def says(text: str) -> dict[str, Any]:
    return item("message", role="assistant", content=[{"type": "output_text", "text": text}])


def thinks(text: str) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": text}]
    return item("reasoning", summary=summary, content=None, encrypted_content="gAAA")


def call(call_id: str, name: str = "shell", arguments: str = "{}") -> dict[str, Any]:
    return item("function_call", call_id=call_id, name=name, arguments=arguments)


def output(call_id: str, text: Any) -> dict[str, Any]:
    return item("function_call_output", call_id=call_id, output=text)


META = row("session_meta", id="s", cwd="/x", source="cli", base_instructions={"text": "You code."})
CONTEXT = row("turn_context", model="gpt-x", cwd="/x")


# --- the shared file ----------------------------------------------------------------------------------------------


def test_the_shared_fixture_is_all_there(shared_dir: Path) -> None:
    """Counted by eye: a header, what a person asked, two calls five minutes apart with one id and without results.

    An id stands for one call in one answer, so the second call is another answer, which was sent the first.
    """
    path = shared_dir / "data" / FIXTURE
    read = Imported(codex, path)
    assert read.counts() == {"sessions": 1, "turns": 2, "next_states": {}, "verdicts": 0, "refused": 0}
    rows = [json.loads(line)["payload"] for line in path.read_text().splitlines()]
    assert [payload.get("type", "") for payload in rows] == ["", "", "function_call", "function_call"]
    assert [[(c.id, c.name, c.arguments) for c in turn.response.tool_calls] for turn in read.turns] == [
        [("call_test", "shell_command", "")],
        [("call_test", "apply_patch", "")],
    ]
    assert read.asked(1) == [("user", "Run the tests"), ("assistant", None)]
    assert [turn.origin.line for turn in read.turns if turn.origin] == [3, 4]
    assert {turn.policy.name for turn in read.turns} == {"unknown"}
    data = shared_dir / "data"
    known = [str(found.relative_to(data)) for found in data.rglob("*.*") if codex.sniff(head_of(found))]
    assert known == [FIXTURE]
    assert same_events(codex, path, path)


# --- items and answers ----------------------------------------------------------------------------------------------


def test_items_of_one_response_are_one_turn(read: Read) -> None:
    got = read(
        META,
        CONTEXT,
        user("go"),
        thinks("hm"),
        says("I look."),
        call("x", arguments='{"cmd": "ls"}'),
        call("y"),
        output("y", "two"),
        output("x", "one"),
        says("Done."),
        user("thanks"),
    )
    assert got.answers() == [("I look.", ["two", "one"]), ("Done.", ["thanks"])]
    first = got.turns[0]
    assert (first.response.reasoning, first.finish_reason, first.policy.name) == ("hm", "tool_calls", "gpt-x")
    assert [(c.id, c.arguments) for c in first.response.tool_calls] == [("x", '{"cmd": "ls"}'), ("y", "{}")]
    assert got.asked(0) == [("system", "You code."), ("user", "go")]
    assert [role for role, _ in got.asked(1)[2:]] == ["assistant", "tool", "tool"]
    assert first.ended_at == "2026-01-01T00:00:00Z"


def test_events_repeat_the_conversation_and_add_nothing_to_it(read: Read) -> None:
    got = read(
        META,
        user("go"),
        event("user_message", message="go"),
        event("task_started"),
        event("agent_reasoning", text="hm"),
        thinks("hm"),
        event("agent_message", message="Done."),
        says("Done."),
        event("token_count", info=None, rate_limits={}),
        event("task_complete", last_agent_message="Done."),
    )
    assert got.answers() == [("Done.", [])]
    assert got.turns[0].response.reasoning == "hm"
    assert got.refused == []


def test_counted_tokens_end_a_response(read: Read) -> None:
    info: dict[str, Any] = {"total_token_usage": {}, "last_token_usage": {}}
    got = read(user("go"), says("First."), event("token_count", info=info), says("Second."), call("x"))
    assert got.answers() == [("First.", []), ("Second.", [])]
    assert [text for _, text in got.asked(1)] == ["go", "First."]


def test_the_header_and_the_model_may_come_after_the_first_rows(read: Read) -> None:
    got = read(user("go"), says("Hi."), META, user("more"), row("turn_context", model="gpt-y"), says("Ok."))
    assert [turn.policy.name for turn in got.turns] == ["gpt-y", "gpt-y"]
    assert got.asked(0) == [("system", "You code."), ("user", "go")]
    assert [turn.kind for turn in got.turns] == ["main", "main"]


def test_the_model_may_change(read: Read) -> None:
    got = read(CONTEXT, user("go"), says("Hi."), row("turn_context", model="gpt-y"), user("more"), says("Ok."))
    assert [turn.policy.name for turn in got.turns] == ["gpt-x", "gpt-y"]


def test_all_kinds_of_calls_and_results(read: Read) -> None:
    got = read(
        user("go"),
        item("custom_tool_call", call_id="p", name="apply_patch", input="*** Begin Patch"),
        item("local_shell_call", call_id="l", status="completed", action={"type": "exec", "command": ["ls"]}),
        item("web_search_call", status="completed", action={"type": "search", "query": "q"}),
        item("custom_tool_call_output", call_id="p", output=[{"type": "input_text", "text": "patched"}]),
        output("l", {"content": "files", "success": True}),
        says("Done."),
    )
    assert [(c.id, c.name, c.arguments) for c in got.turns[0].response.tool_calls] == [
        ("p", "apply_patch", "*** Begin Patch"),
        ("l", "local_shell", '{"type": "exec", "command": ["ls"]}'),
        (None, "web_search", '{"type": "search", "query": "q"}'),
    ]
    assert got.answers() == [(None, ["patched", "files"]), ("Done.", [])]


def test_texts_stay_what_they_are(read: Read) -> None:
    twice = json.dumps(json.dumps({"cmd": "ls"}))
    printed = json.dumps({"output": "no", "metadata": {"exit_code": 1}})
    long = "x" * 120_000
    got = read(
        user("null"),
        call("x", arguments=twice),
        output("x", "null"),
        call("y"),
        output("y", printed),
        call("z"),
        output("z", long),
    )
    assert got.turns[0].response.tool_calls[0].arguments == twice
    assert [state.content for state in got.states] == ["null", printed, long]
    # A number that a program printed is no exit code; what Codex noted itself is one.
    assert [state.exit_code for state in got.states] == [None, None, None]
    noted = event("exec_command_end", call_id="x", exit_code=2)
    assert [s.exit_code for s in read(user("go"), call("x"), noted, output("x", "no")).states] == [2]


def test_results_that_never_came_and_ids_used_again(read: Read) -> None:
    got = read(
        user("go"), call("x"), output("x", "one"), call("x"), output("x", "two"), call("y"), says("k"), call("x")
    )
    assert got.answers() == [(None, ["one"]), (None, ["two"]), ("k", [])]
    assert [len(turn.response.tool_calls) for turn in got.turns] == [1, 1, 2]


def test_the_same_result_twice_is_one(read: Read) -> None:
    got = read(user("go"), call("x"), output("x", "one"), output("x", "one"), says("k"))
    assert got.answers() == [(None, ["one"]), ("k", [])]
    assert len(got.asked(1)) == 3


def test_the_first_version_had_no_envelopes(read: Read) -> None:
    got = read(
        {"id": "s", "timestamp": "2025-05-07T00:00:00Z", "instructions": "Be brief.", "git": {}},
        {"record_type": "state"},
        user("go")["payload"],
        call("x")["payload"],
        {"record_type": "state"},
        output("x", "one")["payload"],
        says("Done.")["payload"],
    )
    assert got.answers() == [(None, ["one"]), ("Done.", [])]


# --- people and machines ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "<environment_context>\n<cwd>/x</cwd>\n</environment_context>",
        "<user_instructions>be brief</user_instructions>",
        "# AGENTS.md instructions for /x\n\n<INSTRUCTIONS>be brief</INSTRUCTIONS>",
        "<user_shell_command>ls</user_shell_command>",
        "<subagent_notification>done</subagent_notification>",
    ],
)
def test_machine_text_in_user_rows_is_sent_but_is_no_reply(read: Read, text: str) -> None:
    got = read(user("go"), says("Hi."), user(text), user("no"), says("Ok."))
    assert got.answers() == [("Hi.", ["no"]), ("Ok.", [])]
    assert got.asked(1)[2:] == [("user", text), ("user", "no")]


def test_what_an_editor_adds_is_not_what_was_typed(read: Read) -> None:
    text = "# Context from my IDE setup:\n\n## Open tabs:\n- a.py\n\n## My request for Codex:\nfix it"
    got = read(user("go"), says("Hi."), user("<environment_context>x</environment_context>", text), says("Ok."))
    assert got.answers()[0] == ("Hi.", ["fix it"])


def test_an_image_is_named(read: Read) -> None:
    part = {"type": "input_image", "image_url": "data:image/png;base64,QUJD"}
    shown = item("message", role="user", content=[{"type": "input_text", "text": "like this"}, part])
    got = read(user("go"), says("Hi."), shown)
    assert (got.states[0].content or "").startswith("like this\n[image image/png sha256:")


def test_an_aborted_answer_and_one_without_a_row(read: Read) -> None:
    told = [event("turn_aborted", reason="interrupted"), user("<turn_aborted>\nstopped\n</turn_aborted>")]
    for rows in (told, told[::-1], told[:1], told[1:]):
        got = read(user("go"), says("Well"), *rows, user("shorter"), says("Ok."))
        assert [turn.finish_reason for turn in got.turns] == ["aborted", "stop"]
        assert got.answers() == [("Well", ["shorter"]), ("Ok.", [])]
        got = read(user("go"), says("Hi."), user("more"), *rows, user("this is bad"), says("Ok."))
        assert got.answers() == [("Hi.", ["more"]), ("Ok.", [])]
        assert got.turns[0].finish_reason == "stop"
        got = read(user("go"), call("x"), *rows, user("never that"), says("Ok."))
        assert got.answers() == [(None, ["never that"]), ("Ok.", [])]
        assert got.turns[0].finish_reason == "tool_calls"


def test_a_subagents_rollout_is_side_turns(read: Read) -> None:
    meta = row("session_meta", id="s", source={"subagent": "review"})
    got = read(meta, user("look"), says("No bugs."), user("sure?"), says("Yes."))
    assert [turn.kind for turn in got.turns] == ["side", "side"]
    assert got.states == []


# --- branches and compaction ------------------------------------------------------------------------------------------


def test_a_rollback_is_a_branch(read: Read) -> None:
    got = read(
        user("go"),
        says("Hi."),
        user("left"),
        says("Left."),
        user("more"),
        says("More."),
        event("thread_rolled_back", num_turns=2),
        user("right"),
        says("Right."),
    )
    assert got.answers() == [("Hi.", ["left", "right"]), ("Left.", ["more"]), ("More.", []), ("Right.", [])]
    assert got.parents() == [None, 0, 1, 0]
    assert [text for _, text in got.asked(3)] == ["go", "Hi.", "right"]


def test_compaction_replaces_what_is_sent(read: Read) -> None:
    kept = [user("kept")["payload"], call("x")["payload"], output("x", "one")["payload"], {"type": "compaction"}]
    for compacted, sent in (
        (row("compacted", message="Sum."), ["You code.", "Sum.", "on"]),
        (row("compacted", message="", replacement_history=kept), ["You code.", "kept", None, "one", "on"]),
    ):
        got = read(META, user("go"), says("Hi."), compacted, event("context_compacted"), user("on"), says("Ok."))
        assert [text for _, text in got.asked(1)] == sent
        assert got.answers() == [("Hi.", ["on"]), ("Ok.", [])]
        assert got.parents() == [None, 0]


# --- what cannot be read --------------------------------------------------------------------------------------------


def test_a_bad_line_costs_the_answer_around_it(read: Read) -> None:
    broken = json.dumps(call("y"))[:-9]
    got = read(
        user("go"), says("I look."), broken, call("x"), output("x", "one"), user("bad"), says("Ok."), user("good")
    )
    assert [(refused.line, refused.reason[:9]) for refused in got.refused] == [
        (2, "a row of "),
        (3, "not JSON "),
        (4, "a row of "),
        (5, "no answer"),
    ]
    assert got.answers() == [("Ok.", ["good"])]


def test_a_bad_line_that_is_no_part_of_an_answer_costs_only_itself(read: Read) -> None:
    bad_event = json.dumps(event("token_count"))[:-3]
    bad_output = json.dumps(output("x", "one"))[:-3]
    got = read(user("go"), says("I look."), bad_event, call("x"), bad_output, says("Ok."), user("good"))
    assert [refused.line for refused in got.refused] == [3, 5]
    assert got.answers() == [("I look.", []), ("Ok.", ["good"])]
    assert len(got.turns[0].response.tool_calls) == 1


@pytest.mark.parametrize(
    ("bad", "reason", "line"),
    [
        (output("zz", "one"), "no answer before it made the tool call 'zz'", 3),
        (item("function_call_output", call_id="x"), "no `output`", 3),
        (item("message", role="bird", content=[]), "role 'bird' is none of", 3),
        (item("message", role="user", content=5), "`content` is a JSON number", 3),
        ({"type": "response_item", "payload": 5}, "`payload` is no object", 3),
        ("[1]", "a JSON list, not an object", 3),
    ],
)
def test_a_row_that_makes_no_sense_is_refused_alone(read: Read, bad: Any, reason: str, line: int) -> None:
    got = read(user("go"), call("x"), bad, output("x", "ok"))
    (refused,) = [one for one in got.refused if reason in one.reason]
    assert refused.line == line
    if bad != "[1]":
        assert got.answers() == [(None, ["ok"])]
        assert len(got.refused) == 1


def test_an_answer_with_a_part_that_makes_no_sense_is_refused(read: Read) -> None:
    got = read(user("go"), says("I look."), item("function_call", call_id="x", name=5, arguments="{}"), user("bad"))
    assert [refused.line for refused in got.refused] == [2]
    assert "at line 3: a tool call has no name" in got.refused[0].reason
    assert got.turns == []


def test_a_file_without_an_answer_says_so(read: Read) -> None:
    assert [one.reason for one in read(META, user("go")).refused] == [
        "the file has no item of an answer, so there is no turn"
    ]
