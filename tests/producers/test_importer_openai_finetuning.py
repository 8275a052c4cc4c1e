"""OpenAI's fine-tuning files, samples of our own: messages, weights, tools, preferences."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from producers.importers import openai_finetuning
from producers.importers.detect import Head
from tests.producers.imported import Imported, write_lines

Read = Callable[..., Imported]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Writes rows as JSON lines and reads them."""

    def rows_read(*rows: Any) -> Imported:
        return Imported(openai_finetuning, write_lines(tmp_path / "train.jsonl", rows))

    return rows_read


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def calls(*ids: str) -> dict[str, Any]:
    function = {"name": "look", "arguments": '{"a":  1}'}
    return says(None, tool_calls=[{"id": one, "type": "function", "function": function} for one in ids])


def result(call_id: str, text: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def test_three_examples_counted_by_hand(read: Read) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    found = read(
        {
            "messages": [
                {"role": "system", "content": "s"},
                user("q"),
                says("a", weight=0),
                user("r"),
                says("b", weight=1),
            ]
        },
        {"messages": [user("q"), calls("x", "y"), result("y", "2"), result("x", "null"), says("c")], "tools": tools},
        {"messages": [user("q"), calls("x"), says("d")]},
    )
    assert found.counts() == {
        "sessions": 3,
        "turns": 6,
        "next_states": {"user_reply": 1, "tool_result": 2},
        "verdicts": 0,
        "refused": 0,
    }
    assert [turn.kind for turn in found.turns] == ["side", "main", "main", "main", "main", "main"]
    assert found.parents() == [None, 0, None, 2, None, 4]
    assert found.turns[1].messages[2] == says("a"), "the weight was never sent to a model"
    assert [(s.tool_call_id, s.content) for s in found.states[1:]] == [("y", "2"), ("x", "null")]
    assert [turn.tools for turn in found.turns] == [[], [], tools, tools, [], []]
    assert [call.arguments for call in found.turns[2].response.tool_calls] == ['{"a":  1}', '{"a":  1}']
    assert [turn.origin.line for turn in found.turns if turn.origin] == [1, 1, 2, 2, 3, 3]


def test_ids_that_repeat_link_to_the_latest_call(read: Read) -> None:
    messages = [user("q"), calls("x"), result("x", "1"), calls("x"), result("x", "2"), says("end")]
    found = read({"messages": messages})
    assert [states for _, states in found.answers()] == [["1"], ["2"], []]


def test_the_old_function_messages(read: Read) -> None:
    old = {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}}
    found = read({"messages": [user("q"), old, {"role": "function", "name": "look", "content": "7"}, says("a")]})
    assert [call.name for call in found.turns[0].response.tool_calls] == ["look"]
    assert [(s.kind, s.content, s.tool_call_id) for s in found.states] == [("tool_result", "7", None)]


def test_pictures_are_named(read: Read) -> None:
    parts = [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a/cat.png?x=1"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]
    found = read({"messages": [user("hello"), says("hi"), user(parts), says("a cat")]})
    assert found.states[0].content == "what is this?\n[image: cat.png]\n[image: image/png]"
    assert found.turns[1].messages[-1]["content"] == parts, "the request keeps them as they were sent"


def test_a_preference_is_two_branches_that_are_judged(read: Read) -> None:
    asked = {"messages": [user("q"), says("a"), user("r")], "tools": [], "parallel_tool_calls": True}
    good, bad = [calls("x"), result("x", "7"), says("seven")], [says("eight")]
    found = read({"input": asked, "preferred_output": good, "non_preferred_output": bad})
    assert found.parents() == [None, 0, 1, 0]
    assert [states for _, states in found.answers()] == [["r"], ["7"], ["preferred"], ["not preferred"]]
    assert [state.verdict for state in found.states] == [None, None, 1.0, 0.0]
    groups = [turn.group_id for turn in found.turns]
    assert groups == [None, groups[1], None, groups[1]]
    assert groups[1] is not None


def test_bad_lines_cost_themselves(read: Read) -> None:
    good = {"messages": [user("q"), says("a")]}
    found = read(
        "{broken",
        good,
        {"messages": [user("no answer")], "reference_answer": "42"},
        [1],
        {"messages": [user("q"), {"role": "narrator"}, user("lost"), says("a"), result("?", "r"), user("b")]},
        {"input": {"messages": [user("q")]}, "preferred_output": [says("a")]},
        good,
        {"input": {"messages": [user("q")]}, "preferred_output": [says("a")], "non_preferred_output": [user("?")]},
    )
    assert [(one.line, one.reason) for one in found.refused] == [
        (1, "not JSON at column 2: Expecting property name enclosed in double quotes"),
        (3, "has no assistant message, so there is no turn"),
        (4, "is a JSON list, not an object"),
        (5, "message 1: role 'narrator' is none of system, developer, user, assistant, tool"),
        (5, "message 2: the turn that it answers could not be read"),
        (5, "message 4: no assistant message before it made the tool call '?'"),
        (6, "has not both a list `preferred_output` and a list `non_preferred_output`"),
        (7, "repeats line 2 word for word, which is in"),
        (8, "`non_preferred_output`: no answer to judge"),
    ]
    assert found.answers() == [("a", []), ("a", ["b"]), ("a", ["preferred"])]
    assert "42" not in json.dumps([turn.messages for turn in found.turns])


def test_a_line_of_100_kb(read: Read) -> None:
    long = "x" * 100_000
    found = read({"messages": [user("q"), says(long), user(long)]})
    assert found.answers() == [(long, [long])]


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ('{"messages": [{"role": "user", "content": "q"}]}', True),
        ('{"input": {"messages": []}, "preferred_output": []}', True),
        ('{"type": "user", "messages": [{"role": "user", "content": "q"}]}', False),
        ('{"conversations": [], "messages": [{"role": "user", "content": "q"}]}', False),
        ("[]", False),
    ],
)
def test_what_is_taken_for_one(text: str, ours: bool) -> None:
    assert openai_finetuning.sniff(Head("f", text.encode(), True)) is ours


def test_a_first_message_longer_than_what_is_looked_at() -> None:
    data = ('{"messages": [{"role": "system", "content": "' + "s" * 300_000).encode()
    assert openai_finetuning.sniff(Head("f", data, False))
