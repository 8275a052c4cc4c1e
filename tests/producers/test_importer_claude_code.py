"""Claude Code: the shared sessions are all there; rows make answers, trees stay trees, machines are not people."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from producers.importers import claude_code
from producers.importers.detect import head_of
from tests.producers.imported import Imported, same_events, write_lines

RECORDED, HAND_MADE = "claude_code/cua_nmap_session.jsonl", "claude_code/sample_session.json"
Read = Callable[..., Imported]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Writes rows as a session and reads them."""

    def rows_read(*rows: Any) -> Imported:
        return Imported(claude_code, write_lines(tmp_path / "session.jsonl", rows))

    return rows_read


def row(kind: str, uuid: str, parent: str | None, content: Any, **more: Any) -> dict[str, Any]:
    message = {"role": kind, "content": content} | more.pop("message", {})
    return {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "s", "message": message, **more}


def user(uuid: str, parent: str | None, content: Any, **more: Any) -> dict[str, Any]:
    return row("user", uuid, parent, content, **more)


def says(uuid: str, parent: str | None, *blocks: Any, mid: str | None = None, **message: Any) -> dict[str, Any]:
    """A row of an answer; text blocks given as text. `mid` is the message's id, its own by default."""
    content = [{"type": "text", "text": block} if isinstance(block, str) else block for block in blocks]
    message = {"id": mid or f"msg_{uuid}", "model": "m", **message}
    return row("assistant", uuid, parent, content, message=message)


def use(call_id: str, name: str = "Bash", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(call_id: str, content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


# --- the shared files ---------------------------------------------------------------------------------------------


def test_the_recorded_session_is_all_there(shared_dir: Path) -> None:
    """Counted straight from the lines: answers are distinct message ids, results are blocks with a `tool_use_id`."""
    path = shared_dir / "data" / RECORDED
    text = path.read_text()
    ids = {json.loads(line)["message"]["id"] for line in text.splitlines() if '"type":"assistant"' in line}
    read = Imported(claude_code, path)
    assert read.counts() == {
        "sessions": 1,
        "turns": 26,
        "next_states": {"tool_result": 25},
        "verdicts": 0,
        "refused": 0,
    }
    assert len(ids) == 26
    assert text.count('"tool_use_id":') == 25
    assert [turn.finish_reason for turn in read.turns] == ["tool_calls"] * 25 + ["stop"]
    assert {turn.policy.name for turn in read.turns} == {"claude-haiku-4-5-20251001"}
    assert sum(turn.response.reasoning is not None for turn in read.turns) == text.count('"type":"thinking"')
    # One answer of three rows: its thinking, its text, its call.
    first = read.turns[0]
    assert (first.origin and first.origin.line, len(first.response.tool_calls)) == (5, 1)
    assert first.response.content
    assert first.response.reasoning
    assert first.ended_at == "2026-04-13T00:27:33.938Z"
    # Each request is the task and then answer and result in turn.
    assert [len(turn.messages) for turn in read.turns] == [1 + 2 * number for number in range(26)]
    assert read.parents() == [None, *range(25)]


def test_the_hand_made_session_is_all_there(shared_dir: Path) -> None:
    path = shared_dir / "data" / HAND_MADE
    lines = json.loads(path.read_text())["loglines"]
    read = Imported(claude_code, path)
    assert read.counts() == {
        "sessions": 1,
        "turns": 15,
        "next_states": {"tool_result": 12, "user_reply": 4},
        "verdicts": 0,
        "refused": 0,
    }
    assert sum(line["type"] == "assistant" for line in lines) == 15
    typed = [line["message"]["content"] for line in lines if isinstance(line["message"]["content"], str)]
    summary = next(line["message"]["content"] for line in lines if line.get("isCompactSummary"))
    # Five times a person typed: the first asked for the first turn, the summary is no person's.
    assert [state.content for state in read.states if state.kind == "user_reply"] == [
        text for text in typed[1:] if text != summary
    ]
    # After the summary nothing older is sent.
    assert read.asked(13) == [("user", summary), ("user", "Add a multiply function too")]
    assert len(read.turns[12].messages) > 20
    assert {turn.policy.name for turn in read.turns} == {"unknown"}


def test_layout_compression_and_name_change_nothing(shared_dir: Path, tmp_path: Path) -> None:
    for file in (RECORDED, HAND_MADE):
        path = shared_dir / "data" / file
        rows = json.loads(path.read_text())["loglines"] if file == HAND_MADE else path.read_text().splitlines()
        other = write_lines(tmp_path / "other.jsonl", rows)
        packed = tmp_path / "packed.jsonl.gz"
        packed.write_bytes(gzip.compress(other.read_bytes()))
        for copy in (other, packed):
            assert [e.id for e in Imported(claude_code, copy).events] == [
                e.id for e in Imported(claude_code, path).events
            ]
    assert same_events(claude_code, path, path)


def test_the_shared_files_are_told_by_their_content(shared_dir: Path) -> None:
    known = {
        str(path.relative_to(shared_dir / "data"))
        for path in (shared_dir / "data").rglob("*.*")
        if claude_code.sniff(head_of(path))
    }
    assert known == {RECORDED, HAND_MADE}


# --- answers of several rows --------------------------------------------------------------------------------------


def test_rows_with_one_message_id_are_one_turn(read: Read) -> None:
    usage = {"usage": {"output_tokens": 7}}
    got = read(
        user("u", None, "go"),
        says("a1", "u", {"type": "thinking", "thinking": "hm", "signature": "x"}, mid="m", **usage),
        says("a2", "a1", "I look.", mid="m", **usage),
        says("a3", "a2", use("x", command="ls"), mid="m", stop_reason="tool_use", **usage),
        user("r", "a3", [result("x", "files")]),
        says("b", "r", "Done.", stop_reason="end_turn"),
    )
    assert got.answers() == [("I look.", ["files"]), ("Done.", [])]
    first = got.turns[0]
    assert (first.response.reasoning, first.finish_reason) == ("hm", "tool_calls")
    assert [(c.id, c.name, c.arguments) for c in first.response.tool_calls] == [("x", "Bash", '{"command": "ls"}')]
    assert got.asked(1) == [("user", "go"), ("assistant", "I look."), ("tool", "files")]


def test_a_block_that_is_written_twice_counts_once(read: Read) -> None:
    got = read(
        user("u", None, "go"),
        says("a1", "u", "I look.", mid="m"),
        says("a2", "a1", "I look.", use("x"), mid="m"),
    )
    assert got.answers() == [("I look.", [])]
    assert len(got.turns[0].response.tool_calls) == 1


def test_parallel_calls_are_one_turn_and_all_results_are_sent(read: Read) -> None:
    """Each result hangs on the row of its own call, so by `parentUuid` alone the first would be on a dead branch."""
    got = read(
        user("u", None, "go"),
        says("a1", "u", use("x"), mid="m"),
        says("a2", "a1", use("y"), mid="m"),
        user("r1", "a1", [result("x", "one")]),
        user("r2", "a2", [result("y", "two")]),
        says("b", "r2", "Done."),
    )
    assert got.answers() == [(None, ["one", "two"]), ("Done.", [])]
    assert got.asked(1)[2:] == [("tool", "one"), ("tool", "two")]
    assert [state.tool_call_id for state in got.states] == ["x", "y"]


def test_an_answer_goes_on_after_a_tool_that_ran_meanwhile(read: Read) -> None:
    got = read(
        user("u", None, "go"),
        says("a1", "u", use("x"), mid="m"),
        user("r1", "a1", [result("x", "one")]),
        says("a2", "r1", use("y"), mid="m"),
        user("r2", "a2", [result("y", "two")]),
        says("b", "r2", "Done."),
    )
    assert got.answers() == [(None, ["one", "two"]), ("Done.", [])]
    assert [role for role, _ in got.asked(1)] == ["user", "assistant", "tool", "tool"]


def test_order_comes_from_links_not_from_lines_or_clocks(read: Read) -> None:
    rows = [
        user("u", None, "go", timestamp="2026-01-01T00:00:09Z"),
        says("a", "u", use("x"), mid="m"),
        user("r", "a", [result("x", "one")], timestamp="2026-01-01T00:00:01Z"),
        says("b", "r", "Done."),
        user("v", "b", "thanks", timestamp="2026-01-01T00:00:00Z"),
    ]
    expected = [(None, ["one"]), ("Done.", ["thanks"])]
    assert read(*rows).answers() == expected
    assert read(*reversed(rows)).answers() == expected
    assert read(rows[3], rows[1], rows[4], rows[0], rows[2]).answers() == expected


def test_a_result_that_never_came_is_no_next_state(read: Read) -> None:
    got = read(
        user("u", None, "go"),
        says("a", "u", use("x"), use("y")),
        user("r", "a", [result("y", "two")]),
        says("b", "r", "k"),
    )
    assert got.answers() == [(None, ["two"]), ("k", [])]
    assert got.refused == []


def test_an_id_used_again_gets_its_own_result(read: Read) -> None:
    got = read(
        user("u", None, "go"),
        says("a", "u", use("x")),
        user("r1", "a", [result("x", "one")]),
        says("b", "r1", use("x")),
        user("r2", "b", [result("x", "two")]),
    )
    assert got.answers() == [(None, ["one"]), (None, ["two"])]


def test_an_answer_that_stands_under_two_parents_is_one_turn_on_two_branches(read: Read) -> None:
    got = read(
        user("u", None, "go"),
        says("a", "u", "Hi.", mid="m1"),
        user("v1", "a", "left"),
        user("v2", "a", "right"),
        says("b1", "v1", "Same.", mid="m2"),
        says("b2", "v2", "Same.", mid="m2"),
        user("w", "b2", "and?"),
        says("c", "w", "End."),
    )
    assert got.answers() == [("Hi.", ["left", "right"]), ("Same.", ["and?"]), ("End.", [])]
    assert [text for _, text in got.asked(2)] == ["go", "Hi.", "right", "Same.", "and?"]


# --- what people said, and what machines said in their name ---------------------------------------------------------


def test_machine_text_in_user_rows_is_sent_but_is_no_reply(read: Read) -> None:
    machine = [
        user("n1", "a", "<command-name>/cost</command-name>\n<command-message>cost</command-message>"),
        user("n2", "n1", "<local-command-stdout>$1.20</local-command-stdout>"),
        user("n3", "n2", "Caveat: generated by commands", isMeta=True),
        user("n4", "n3", [{"type": "text", "text": "<system-reminder>be brief</system-reminder>"}]),
        user("n5", "n4", "a task ended", origin={"kind": "task-notification"}),
        user("n6", "n5", "<bash-input>ls</bash-input><bash-stdout>x</bash-stdout><bash-stderr></bash-stderr>"),
    ]
    got = read(
        user("u", None, "go"), says("a", "u", "Hi."), *machine, user("v", "n6", "no, wrong"), says("b", "v", "Ok.")
    )
    assert got.answers() == [("Hi.", ["no, wrong"]), ("Ok.", [])]
    assert len(got.asked(1)) == 2 + 6 + 1


def test_a_reminder_around_what_a_person_typed_is_cut_off(read: Read) -> None:
    typed = "see <system-reminder>x</system-reminder> here"
    text = f"<system-reminder>\nrules\n</system-reminder>\n{typed}\n\n<system-reminder>more</system-reminder>"
    got = read(user("u", None, "go"), says("a", "u", "Hi."), user("v", "a", text), says("b", "v", "Ok."))
    assert got.answers()[0] == ("Hi.", [typed])
    assert got.asked(1)[-1] == ("user", text)


def test_an_interrupted_answer_is_aborted(read: Read) -> None:
    got = read(
        user("u", None, "go"),
        says("a", "u", "Well", stop_reason=None),
        user("i", "a", [{"type": "text", "text": "[Request interrupted by user]"}]),
        user("v", "i", "shorter"),
        says("b", "v", "Ok."),
    )
    assert [turn.finish_reason for turn in got.turns] == ["aborted", "stop"]
    assert got.answers() == [("Well", ["shorter"]), ("Ok.", [])]


def test_what_follows_an_answer_without_a_row_is_no_feedback_on_an_older_turn(read: Read) -> None:
    got = read(
        user("u", None, "go"),
        says("a", "u", "Hi."),
        user("v", "a", "nice"),
        user("i", "v", "[Request interrupted by user]"),
        user("w", "i", "this is bad"),
        says("b", "w", "Ok."),
    )
    assert got.answers() == [("Hi.", ["nice"]), ("Ok.", [])]
    assert got.turns[0].finish_reason == "stop"
    assert got.refused == []


def test_a_tool_that_was_stopped_leaves_a_whole_answer_and_feedback_on_it(read: Read) -> None:
    got = read(
        user("u", None, "go"),
        says("a", "u", use("x", command="rm -r .")),
        user(
            "i",
            "a",
            [
                result("x", "The user rejected it"),
                {"type": "text", "text": "[Request interrupted by user for tool use]"},
            ],
        ),
        user("v", "i", "never delete"),
    )
    assert got.answers() == [(None, ["The user rejected it", "never delete"])]
    assert [(s.kind, s.role) for s in got.states] == [("tool_result", "tool"), ("user_reply", "user")]
    assert got.turns[0].finish_reason == "tool_calls"


def test_what_was_typed_while_the_policy_worked_is_a_reply(read: Read) -> None:
    queued = {"type": "queued_command", "prompt": "also test it", "commandMode": "prompt"}
    got = read(
        user("u", None, "go"),
        says("a", "u", use("x")),
        user("r", "a", [result("x", "one")]),
        {"type": "attachment", "uuid": "q", "parentUuid": "r", "attachment": queued},
        says("b", "q", "Ok."),
    )
    assert got.answers() == [(None, ["one", "also test it"]), ("Ok.", [])]
    assert got.asked(1)[-1] == ("user", "also test it")


def test_what_claude_code_wrote_in_the_policys_place_is_not_trained(read: Read) -> None:
    error = says("a", "u", "API Error: 500", model="<synthetic>") | {"isApiErrorMessage": True}
    got = read(user("u", None, "go"), error, user("v", "a", "again"), says("b", "v", "No.", model="<synthetic>"))
    assert [turn.finish_reason for turn in got.turns] == ["error", "aborted"]


@pytest.mark.parametrize(
    ("stop", "blocks", "finish"),
    [
        ("end_turn", ["Hi."], "stop"),
        ("max_tokens", ["Hi"], "length"),
        ("max_tokens", [use("x")], "length"),
        (None, ["Hi."], "stop"),
        (None, [use("x")], "tool_calls"),
        (None, [{"type": "thinking", "thinking": "hm"}], "aborted"),
        ("end_turn", [{"type": "redacted_thinking", "data": "x"}], "stop"),
        ("unheard_of", ["Hi."], "stop"),
    ],
)
def test_how_an_answer_ended(read: Read, stop: str | None, blocks: list[Any], finish: str) -> None:
    (turn,) = read(user("u", None, "go"), says("a", "u", *blocks, stop_reason=stop)).turns
    assert turn.finish_reason == finish


# --- trees ---------------------------------------------------------------------------------------------------------


def test_an_edited_message_is_a_branch(read: Read) -> None:
    got = read(
        user("u", None, "go"),
        says("a", "u", "Hi."),
        user("v", "a", "left"),
        says("b", "v", "Left."),
        user("w", "a", "right"),
        says("c", "w", "Right."),
    )
    assert got.answers() == [("Hi.", ["left", "right"]), ("Left.", []), ("Right.", [])]
    assert got.parents() == [None, 0, 0]
    assert [text for _, text in got.asked(2)] == ["go", "Hi.", "right"]


def test_subagents_are_side_turns_with_their_own_requests(read: Read) -> None:
    side = {"isSidechain": True}
    got = read(
        user("u", None, "go"),
        says("a", "u", use("t", "Task")),
        user("s", "a", "look for bugs", **side),
        says("s1", "s", use("x")) | side,
        user("s2", "s1", [result("x", "none")], **side),
        says("s3", "s2", "No bugs.") | side,
        user("r", "a", [result("t", "No bugs.")]),
        says("b", "r", "Done."),
    )
    assert [(turn.kind, turn.response.content) for turn in got.turns] == [
        ("main", None),
        ("main", "Done."),
        ("side", None),
        ("side", "No bugs."),
    ]
    assert got.parents() == [None, 0, None, 2]
    assert got.asked(2) == [("user", "look for bugs")]
    assert got.asked(1)[-1] == ("tool", "No bugs.")
    assert got.answers()[0] == (None, ["No bugs."])


def test_a_subagents_own_file_is_read(read: Read) -> None:
    side = {"isSidechain": True, "agentId": "x"}
    got = read(user("s", "elsewhere", "look", **side), says("s1", "s", "No bugs.") | side)
    assert got.counts()["turns"] == 1
    assert got.turns[0].kind == "side"


def test_the_stream_of_a_run_without_a_terminal(read: Read) -> None:
    """It has uuids but no parents, and subagents are told by the call that started them."""

    def streamed(row: dict[str, Any], told_by: str | None = None) -> dict[str, Any]:
        rest = {key: value for key, value in row.items() if key not in ("parentUuid", "sessionId")}
        return rest | {"session_id": "s", "parent_tool_use_id": told_by}

    got = read(
        {"type": "system", "subtype": "init", "session_id": "s", "uuid": "i", "tools": ["Task"]},
        streamed(user("u", None, "go")),
        streamed(says("a1", None, use("t1", "Task"), mid="m")),
        streamed(says("a2", None, use("t2", "Task"), mid="m")),
        streamed(user("s1", None, "look left"), "t1"),
        streamed(user("s2", None, "look right"), "t2"),
        streamed(says("s3", None, "left"), "t1"),
        streamed(says("s4", None, "right"), "t2"),
        streamed(user("r1", None, [result("t1", "left")])),
        streamed(user("r2", None, [result("t2", "right")])),
        streamed(says("b", None, "Done.")),
        {"type": "result", "subtype": "success", "session_id": "s", "uuid": "x"},
    )
    assert [turn.kind for turn in got.turns] == ["main", "main", "side", "side"]
    assert got.answers() == [(None, ["left", "right"]), ("Done.", []), ("left", []), ("right", [])]
    assert [got.asked(number) for number in (2, 3)] == [[("user", "look left")], [("user", "look right")]]
    assert got.refused == []


def test_compaction_starts_the_request_anew_on_the_same_branch(read: Read) -> None:
    got = read(
        user("u", None, "go"),
        says("a", "u", "Hi."),
        {"type": "system", "subtype": "compact_boundary", "uuid": "c", "parentUuid": None, "logicalParentUuid": "a"},
        user("d", "c", "Summary.", isCompactSummary=True),
        user("v", "d", "go on"),
        says("b", "v", "Ok."),
    )
    assert got.answers() == [("Hi.", ["go on"]), ("Ok.", [])]
    assert got.asked(1) == [("user", "Summary."), ("user", "go on")]
    assert got.parents() == [None, 0]


# --- what cannot be read --------------------------------------------------------------------------------------------


def test_a_bad_line_costs_itself_and_what_hangs_on_it(read: Read) -> None:
    broken = json.dumps(user("r", "a", [result("x", "one")]))[:-9]
    got = read(user("u", None, "go"), says("a", "u", use("x")), broken, says("b", "r", "Ok."), user("v", "b", "good"))
    assert [(row.line, row.reason.partition(" at ")[0]) for row in got.refused] == [(3, "not JSON")]
    assert got.answers() == [(None, []), ("Ok.", ["good"])]
    assert got.parents() == [None, 0]


def test_an_answer_with_an_unreadable_row_is_refused(read: Read) -> None:
    broken = json.dumps(says("a1", "u", "Hi.", mid="m"))[:-9]
    got = read(
        user("t", None, "go"),
        says("z", "t", "Before."),
        user("u", "z", "next"),
        broken,
        says("a2", "a1", use("x"), mid="m"),
        user("r", "a2", [result("x", "one")]),
        user("v", "r", "bad"),
        says("b", "v", "Ok."),
    )
    assert got.answers() == [("Before.", ["next"]), ("Ok.", [])]
    assert [row.line for row in got.refused] == [4, 5, 6]
    assert "at line 4" in got.refused[1].reason


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (user("r", "a", [result("zz", "one")]), "no answer before it made the tool call 'zz'"),
        (user("r", "a", [result("x", 5)]), "the tool result's `content` is a JSON number"),
        (user("r", "a", 5), "`content` is a JSON number"),
        ({"type": "user", "uuid": "r", "parentUuid": "a"}, "`message` is a JSON null"),
        (says("r", "a", {"type": "tool_use", "input": {}}), "a tool call has no name"),
        (says("r", "a", {"type": "dance"}), "a block of type 'dance'"),
        (user("a", "u", "other"), "another row has its uuid"),
        (user("r", "r", "me"), "runs in a circle"),
        ([1], "a JSON list, not an object"),
    ],
)
def test_a_row_that_makes_no_sense_is_refused_alone(read: Read, bad: Any, reason: str) -> None:
    got = read(user("u", None, "go"), says("a", "u", use("x")), bad, user("s", "a", [result("x", "ok")]))
    (refused,) = got.refused
    assert refused.line == 3
    assert reason in refused.reason
    assert got.answers() == [(None, ["ok"])]


def test_the_same_row_twice_is_one_row(read: Read) -> None:
    rows = [user("u", None, "go"), says("a", "u", use("x")), user("r", "a", [result("x", "one")])]
    got = read(*rows, *rows)
    assert got.answers() == [(None, ["one"])]
    assert got.refused == []


def test_odd_texts_stay_what_they_are(read: Read) -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD" * 40}}
    long = base64.b64encode(bytes(100_000)).decode()
    twice = json.dumps(json.dumps({"a": 1}))
    got = read(
        user("u", None, "null"),
        says("a", "u", {"type": "tool_use", "id": "x", "name": "f", "input": twice}),
        user("r", "a", [result("x", [{"type": "text", "text": "null"}, picture])]),
        says("b", "r", use("y")),
        user("s", "b", [result("y", long)]),
        says("c", "s", "null"),
    )
    assert got.turns[0].response.tool_calls[0].arguments == twice
    assert got.asked(0) == [("user", "null")]
    text = got.states[0].content or ""
    assert text.startswith("null\n[image image/png sha256:")
    assert len(text) < 60
    assert got.states[1].content == long
    assert got.answers()[2] == ("null", [])


def test_a_file_without_an_answer_says_so(read: Read) -> None:
    got = read({"type": "summary", "summary": "x", "leafUuid": "y"}, user("u", None, "go"))
    assert [row.reason for row in got.refused] == ["the file has no row of type assistant, so there is no turn"]
