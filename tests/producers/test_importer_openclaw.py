"""OpenClaw and pi: the shared session is all there; branches, compaction, aborted turns and machines in user rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from producers.importers import openclaw
from producers.importers.detect import head_of
from tests.producers.imported import Imported, same_events, write_lines

RECORDED = "openclaw_pi/large-session.head.jsonl"
Read = Callable[..., Imported]
HEADER = {"type": "session", "version": 3, "id": "s", "timestamp": "2026-01-01T00:00:00Z", "cwd": "/x"}


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Writes rows as a session with a header and reads them."""

    def rows_read(*rows: Any) -> Imported:
        return Imported(openclaw, write_lines(tmp_path / "session.jsonl", [HEADER, *rows]))

    return rows_read


def entry(kind: str, own: str, parent: str | None, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "id": own, "parentId": parent, **fields}


def user(own: str, parent: str | None, text: str, **message: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return entry("message", own, parent, message={"role": "user", "content": content, **message})


def says(own: str, parent: str | None, *parts: Any, stop: str | None = "stop", **message: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    message = {"role": "assistant", "content": content, "model": "m", "provider": "p", "stopReason": stop, **message}
    return entry("message", own, parent, message=message)


def call(call_id: str, name: str = "bash", **arguments: Any) -> dict[str, Any]:
    return {"type": "toolCall", "id": call_id, "name": name, "arguments": arguments}


def result(own: str, parent: str | None, call_id: str, text: str) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return entry("message", own, parent, message={"role": "toolResult", "toolCallId": call_id, "content": content})


def without_links(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("id", "parentId")}


# --- the shared file ----------------------------------------------------------------------------------------------


def test_the_recorded_session_is_all_there(shared_dir: Path) -> None:
    """Counted straight from the text of the lines; the second user row on answers something."""
    path = shared_dir / "data" / RECORDED
    text = path.read_text()
    read = Imported(openclaw, path)
    assert read.counts() == {
        "sessions": 1,
        "turns": 69,
        "next_states": {"tool_result": 70, "user_reply": 5},
        "verdicts": 0,
        "refused": 0,
    }
    roles = Counter(line.partition('"message":{"role":"')[2].partition('"')[0] for line in text.splitlines())
    assert roles == {"": 2, "user": 6, "assistant": 69, "toolResult": 70}
    assert Counter(turn.finish_reason for turn in read.turns) == {"tool_calls": 64, "stop": 3, "aborted": 1, "error": 1}
    assert text.count('"stopReason":"toolUse"') == 64
    assert read.parents() == [None, *range(68)]
    # The session's first answer was aborted by another model: what was typed next is about no other turn.
    first = read.turns[0]
    assert (first.finish_reason, first.policy.name, first.response.content) == ("aborted", "gpt-5.1-codex", None)
    assert {turn.policy.name for turn in read.turns[1:]} == {"claude-sonnet-4-5"}
    assert [role for role, _ in read.asked(1)] == ["user", "user"]


def test_every_result_of_the_shared_session_is_beside_its_call(shared_dir: Path) -> None:
    rows = [json.loads(line) for line in (shared_dir / "data" / RECORDED).read_text().splitlines()]
    line_of_call = {
        part["id"]: number
        for number, row in enumerate(rows, start=1)
        for part in row.get("message", {}).get("content", [])
        if part["type"] == "toolCall"
    }
    read = Imported(openclaw, shared_dir / "data" / RECORDED)
    line_of_turn = {turn.turn_id: turn.origin.line for turn in read.turns if turn.origin}
    results = [state for state in read.states if state.kind == "tool_result"]
    assert all(line_of_turn[state.turn_id] == line_of_call[state.tool_call_id or ""] for state in results)
    # 87 calls and 70 results: an answer that failed made 16 calls which never ran, and the file ends before another's.
    assert len(line_of_call) == 87


def test_it_is_told_by_its_content_and_gives_the_same_twice(shared_dir: Path, tmp_path: Path) -> None:
    data = shared_dir / "data"
    known = [str(path.relative_to(data)) for path in data.rglob("*.*") if openclaw.sniff(head_of(path))]
    assert known == [RECORDED]
    other = tmp_path / "other.jsonl"
    rows = [json.loads(line) for line in (data / RECORDED).read_text().splitlines()]
    write_lines(other, [dict(reversed(row.items())) for row in rows])
    assert [event.id for event in Imported(openclaw, other).events] == [
        event.id for event in Imported(openclaw, data / RECORDED).events
    ]
    assert same_events(openclaw, data / RECORDED, data / RECORDED)


# --- turns and what answered them -----------------------------------------------------------------------------------


def test_calls_thoughts_and_results(read: Read) -> None:
    thought = {"type": "thinking", "thinking": "hm", "thinkingSignature": "x"}
    got = read(
        user("u", None, "go"),
        says("a", "u", thought, "I look.", call("x", path="é"), call("y"), stop="toolUse"),
        result("r2", "a", "y", "two"),
        result("r1", "r2", "x", "null"),
        says("b", "r1", "Done."),
        user("v", "b", "thanks"),
    )
    assert got.answers() == [("I look.", ["two", "null"]), ("Done.", ["thanks"])]
    first = got.turns[0].response
    assert (first.reasoning, first.tool_calls[0].arguments) == ("hm", '{"path": "é"}')
    assert [role for role, _ in got.asked(1)] == ["user", "assistant", "tool", "tool"]
    assert got.turns[0].messages == [{"role": "user", "content": "go"}]


def test_version_1_has_no_links_and_the_header_may_come_late(tmp_path: Path) -> None:
    rows = [user("u", None, "go"), says("a", "u", call("x")), result("r", "a", "x", "one"), says("b", "r", "Done.")]
    old = [without_links(row) for row in rows]
    late = write_lines(tmp_path / "late.jsonl", [*old[:2], HEADER, *old[2:]])
    assert Imported(openclaw, late).answers() == [(None, ["one"]), ("Done.", [])]
    assert openclaw.sniff(head_of(late))


def test_order_comes_from_links(read: Read) -> None:
    rows = [user("u", None, "go"), says("a", "u", call("x")), result("r", "a", "x", "one"), says("b", "r", "Done.")]
    assert read(*reversed(rows)).answers() == read(*rows).answers() == [(None, ["one"]), ("Done.", [])]


def test_an_aborted_answer_takes_the_next_words_and_no_older_turn_does(read: Read) -> None:
    got = read(
        user("u", None, "go"),
        says("a", "u", "Hi."),
        user("v", "a", "more"),
        says("b", "v", stop="aborted"),
        user("w", "b", "bad"),
        says("c", "w", "Ok."),
    )
    assert [turn.finish_reason for turn in got.turns] == ["stop", "aborted", "stop"]
    assert got.answers() == [("Hi.", ["more"]), (None, ["bad"]), ("Ok.", [])]
    assert [text for _, text in got.asked(2)] == ["go", "Hi.", "more", "bad"]


@pytest.mark.parametrize(
    ("stop", "parts", "finish"),
    [
        ("length", ["Hi"], "length"),
        ("error", ["Hi", call("x")], "error"),
        ("aborted", ["Hi"], "aborted"),
        ("toolUse", [call("x")], "tool_calls"),
        ("stop", [], "stop"),
        (None, [], "aborted"),
        (None, ["Hi"], "stop"),
    ],
)
def test_how_an_answer_ended(read: Read, stop: str | None, parts: list[Any], finish: str) -> None:
    (turn,) = read(user("u", None, "go"), says("a", "u", *parts, stop=stop)).turns
    assert turn.finish_reason == finish


def test_an_answer_that_was_appended_twice_is_one_turn_on_both_branches(read: Read) -> None:
    again = {"responseId": "resp_1"}
    got = read(
        user("u", None, "go"),
        says("a", "u", "Hi."),
        user("v1", "a", "left"),
        user("v2", "a", "right"),
        says("b1", "v1", "Same.", **again),
        says("b2", "v2", "Same.", **again),
        user("w", "b2", "and?"),
        says("c", "w", "End."),
    )
    assert got.answers() == [("Hi.", ["left", "right"]), ("Same.", ["and?"]), ("End.", [])]
    assert [text for _, text in got.asked(2)] == ["go", "Hi.", "right", "Same.", "and?"]
    # Without an id of the response, the whole message with its millisecond says that it is the same.
    got = read(user("u", None, "go"), says("a", "u", "Hi.", timestamp=17), says("b", "a", "Hi.", timestamp=17))
    assert got.answers() == [("Hi.", [])]


def test_openclaws_copy_of_what_it_delivered_is_no_answer(read: Read) -> None:
    mirror = says("m", "a", "Hi.", provider="openclaw", model="delivery-mirror")
    got = read(user("u", None, "go"), says("a", "u", "Hi."), mirror, user("v", "m", "more"), says("b", "v", "Ok."))
    assert got.answers() == [("Hi.", ["more"]), ("Ok.", [])]
    assert len(got.asked(1)) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("System: [2026-01-01 10:00] exec finished", {}),
        ("[cron:1 daily] check the mail", {}),
        ("Read HEARTBEAT.md if it exists.", {}),
        ("hello from another agent", {"provenance": {"kind": "inter_session"}}),
        ("<relevant-memories>likes tea</relevant-memories>", {}),
    ],
)
def test_machine_text_in_user_rows_is_sent_but_is_no_reply(read: Read, text: str, message: dict[str, Any]) -> None:
    got = read(user("u", None, "go"), says("a", "u", "Hi."), user("v", "a", text, **message), says("b", "v", "Ok."))
    assert got.answers() == [("Hi.", []), ("Ok.", [])]
    assert got.asked(1)[-1] == ("user", text)


def test_what_openclaw_knows_of_a_message_is_not_what_was_said(read: Read) -> None:
    known = 'Conversation info (untrusted metadata):\n```json\n{"message_id": "1"}\n```\n\n'
    text = f"{known}[Wed 2026-01-28 10:30 PST] it broke [again]\n[message_id: 7]"
    got = read(user("u", None, "go"), says("a", "u", "Hi."), user("v", "a", text), says("b", "v", "Ok."))
    assert got.answers()[0] == ("Hi.", ["it broke [again]"])
    assert got.asked(1)[-1] == ("user", text)


def test_commands_and_extensions_speak_to_the_policy_only(read: Read) -> None:
    ran = {"role": "bashExecution", "command": "ls", "output": "x", "exitCode": 1}
    got = read(
        user("u", None, "go"),
        says("a", "u", "Hi."),
        entry("message", "c", "a", message=ran),
        entry("message", "d", "c", message=ran | {"command": "secret", "excludeFromContext": True}),
        entry("message", "e", "d", message={"role": "custom", "content": "note"}),
        entry("custom_message", "f", "e", content="more", customType="x"),
        entry("custom", "g", "f", data={"content": "state"}, customType="x"),
        entry("model_change", "h", "g", modelId="n"),
        entry("label", "i", "h", targetId="a", label="x"),
        says("b", "i", "Ok."),
    )
    assert got.answers() == [("Hi.", []), ("Ok.", [])]
    assert [text for _, text in got.asked(1)] == ["go", "Hi.", "$ ls\nx", "note", "more"]
    assert got.refused == []


# --- trees ----------------------------------------------------------------------------------------------------------


def test_branches_with_a_summary_of_the_one_that_was_left(read: Read) -> None:
    got = read(
        user("u", None, "go"),
        says("a", "u", "Hi."),
        user("v", "a", "left"),
        says("b", "v", "Left."),
        entry("branch_summary", "s", "a", fromId="b", summary="Tried left."),
        user("w", "s", "right"),
        says("c", "w", "Right."),
    )
    assert got.answers() == [("Hi.", ["left", "right"]), ("Left.", []), ("Right.", [])]
    assert got.parents() == [None, 0, 0]
    assert [text for _, text in got.asked(2)] == ["go", "Hi.", "Tried left.", "right"]


def test_compaction_keeps_the_summary_and_what_it_names(read: Read) -> None:
    rows = [
        user("u", None, "go"),
        says("a", "u", "One."),
        user("v", "a", "next"),
        says("b", "v", "Two."),
        entry("compaction", "c", "b", summary="Sum.", firstKeptEntryId="v"),
        user("w", "c", "on"),
        says("d", "w", "Three."),
        entry("compaction", "e", "d", summary="Sum of all.", firstKeptEntryId="b"),
        user("x", "e", "end"),
        says("f", "x", "Four."),
    ]
    got = read(*rows)
    assert [text for _, text in got.asked(2)] == ["Sum.", "next", "Two.", "on"]
    assert [text for _, text in got.asked(3)] == ["Sum of all.", "Two.", "on", "Three.", "end"]
    assert got.answers()[1] == ("Two.", ["on"])
    assert got.parents() == [None, 0, 1, 2]
    # Version 1 counts rows, the header among them.
    rows[4] = {"type": "compaction", "summary": "Sum.", "firstKeptEntryIndex": 3}
    old = read(*[without_links(row) for row in rows[:7]])
    assert [text for _, text in old.asked(2)] == ["Sum.", "next", "Two.", "on"]


# --- what cannot be read --------------------------------------------------------------------------------------------


def test_a_bad_line_costs_itself(read: Read) -> None:
    got = read(
        user("u", None, "go"),
        says("a", "u", "Hi."),
        '{"type": "message", "id": "v", "par',
        says("b", "v", "Ok."),
        user("w", "b", "good"),
    )
    assert [row.line for row in got.refused] == [4]
    assert got.answers() == [("Hi.", []), ("Ok.", ["good"])]


def test_words_after_an_answer_that_could_not_be_read_are_about_no_older_one(read: Read) -> None:
    got = read(user("u", None, "go"), says("a", "u", "Hi."), user("v", "a", "x"), "{", user("w", "b", "bad"))
    assert got.answers() == [("Hi.", ["x"])]
    old = [without_links(row) for row in (user("u", None, "go"), says("a", "u", "Hi."))]
    got = read(*old, "{", without_links(user("w", None, "bad")))
    assert got.answers() == [("Hi.", [])]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (result("r", "a", "zz", "one"), "no answer before it made the tool call 'zz'"),
        (entry("message", "r", "a", message={"role": "bird", "content": ""}), "role 'bird' is none of"),
        (entry("message", "r", "a"), "`message` is a JSON null"),
        (says("r", "a", {"type": "dance"}), "a part of type 'dance'"),
        (says("r", "a", {"type": "toolCall"}), "a tool call has no name"),
        (user("a", "u", "other"), "another row has its id"),
        (user("r", "r", "me"), "runs in a circle"),
        ({"id": "r", "parentId": "a"}, "no `type`"),
        ("7", "a JSON number, not an object"),
    ],
)
def test_a_row_that_makes_no_sense_is_refused_alone(read: Read, bad: Any, reason: str) -> None:
    got = read(user("u", None, "go"), says("a", "u", call("x")), bad, result("s", "a", "x", "ok"))
    (refused,) = got.refused
    assert refused.line == 4
    assert reason in refused.reason
    assert got.answers() == [(None, ["ok"])]


def test_images_are_named_and_long_lines_are_whole(read: Read) -> None:
    picture = {"type": "image", "data": "QUJD" * 50, "mimeType": "image/png"}
    long = "x" * 150_000
    shown = entry("message", "r", "a", message={"role": "toolResult", "toolCallId": "x", "content": [picture]})
    got = read(user("u", None, long), says("a", "u", call("x")), shown, says("b", "r", "Ok."))
    assert got.asked(0) == [("user", long)]
    assert (got.states[0].content or "").startswith("[image image/png sha256:")


def test_a_file_without_an_answer_says_so(read: Read) -> None:
    assert [row.reason for row in read(user("u", None, "go")).refused] == [
        "the file has no message of role assistant, so there is no turn"
    ]
