"""ShareGPT: what the shared file holds is all there; calls, observations, pairs and labels are what they are."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from producers.importers import sharegpt
from producers.importers.detect import Head
from tests.producers.imported import Imported, same_events, write_lines

FILE = "data/sharegpt/fastchat_dummy_conversation.json"
Read = Callable[..., Imported]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Writes entries as a JSON list and reads them."""

    def entries_read(*entries: Any) -> Imported:
        path = tmp_path / "log.json"
        path.write_text(json.dumps(entries, indent=1))
        return Imported(sharegpt, path)

    return entries_read


def talk(*rows: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"conversations": [{"from": name, "value": value} for name, value in rows], **more}


def test_the_shared_file_counted_by_its_lines(shared_dir: Path) -> None:
    found = Imported(sharegpt, shared_dir / FILE)
    text = (shared_dir / FILE).read_text()
    humans, answers = text.count('"from": "human"'), text.count('"from": "gpt"')
    entries = text.count('"id": "identity_')
    assert (entries, humans, answers) == (500, 1000, 1000)
    # Every conversation begins with a human row, which answers nothing; every other one answers the turn before.
    assert found.counts() == {
        "sessions": entries,
        "turns": answers,
        "next_states": {"user_reply": humans - entries},
        "verdicts": 0,
        "refused": 0,
    }
    lines = text.split("\n")
    assert all(lines[turn.origin.line - 1] == "  {" for turn in found.turns if turn.origin)


def test_every_row_of_the_shared_file_is_linked_to_the_row_before(shared_dir: Path) -> None:
    found = Imported(sharegpt, shared_dir / FILE)
    pairs = re.findall(
        r'"from": "gpt",\s*"value": ("(?:[^"\\]|\\.)*")\s*\},\s*\{\s*"from": "human",\s*"value": ("(?:[^"\\]|\\.)*")',
        (shared_dir / FILE).read_text(),
    )
    replied = [(text, states[0]) for text, states in found.answers() if states]
    assert len(pairs) == 500
    assert replied == [(json.loads(said), json.loads(reply)) for said, reply in pairs]


def test_calls_and_observations(read: Read) -> None:
    call = {"name": "look", "arguments": {"where": "hér", "n": 1}}
    found = read(
        talk(
            ("human", "find it"),
            ("function_call", json.dumps(call)),
            ("observation", "null"),
            ("gpt", "there"),
            ("human", "thanks"),
            ("human", "are you there?"),
            system="be short",
            tools=json.dumps([{"name": "look"}]),
        )
    )
    assert [[state.kind, state.content] for state in found.states] == [
        ["tool_result", "null"],
        ["user_reply", "thanks"],
    ]
    first, second = found.turns
    assert (first.response.tool_calls[0].name, first.response.tool_calls[0].id) == ("look", None)
    assert first.response.tool_calls[0].arguments == '{"where":"hér","n":1}'
    assert first.tools == [{"name": "look"}]
    assert found.asked(0) == [("system", "be short"), ("user", "find it")]
    assert [message["role"] for message in second.messages] == ["system", "user", "assistant", "tool"]


def test_parallel_calls_and_arguments_that_are_encoded_twice(read: Read) -> None:
    calls = [
        {"name": "a", "arguments": '{"x":  1}'},
        {"name": "b", "arguments": json.dumps('{"y":  2}')},
        {"name": "c"},
    ]
    found = read(
        talk(("human", "q"), ("function_call", json.dumps(calls)), ("tool", "1"), ("tool", "2"), ("gpt", "ok"))
    )
    assert [call.arguments for call in found.turns[0].response.tool_calls] == ['{"x":  1}', '{"y":  2}', "{}"]
    assert [state.content for state in found.states] == ["1", "2"], "the third result never came"


def test_machine_text_in_a_human_row_is_a_tool_result(read: Read) -> None:
    text = "<tool_response>\n7\n</tool_response>\n<tool_response>8</tool_response>"
    found = read(
        talk(
            ("human", "q"), ("gpt", "<tool_call>{}</tool_call>"), ("human", text), ("gpt", "15"), ("human", text + "!")
        )
    )
    assert [state.kind for state in found.states] == ["tool_result", "user_reply"]


def test_a_pair_is_two_branches_of_one_group(read: Read) -> None:
    good, bad = {"from": "gpt", "value": "yes"}, {"from": "gpt", "value": "no"}
    found = read(talk(("human", "a"), ("gpt", "b"), ("human", "c"), chosen=good, rejected=bad))
    assert found.answers() == [("b", ["c"]), ("yes", ["chosen"]), ("no", ["rejected"])]
    assert found.parents() == [None, 0, 0]
    assert [state.verdict for state in found.states] == [None, 1.0, 0.0]
    groups = [turn.group_id for turn in found.turns]
    assert groups[0] is None
    assert groups[1] == groups[2] is not None


@pytest.mark.parametrize(("name", "label", "verdict"), [("label", True, 1.0), ("kto_tag", False, 0.0)])
def test_a_label_judges_the_last_answer(read: Read, name: str, label: bool, verdict: float) -> None:
    found = read(talk(("human", "a"), ("gpt", "b"), ("human", "c"), ("gpt", "d"), **{name: label}))
    assert [(state.turn_id == found.turns[1].turn_id, state.verdict) for state in found.states] == [
        (False, None),
        (True, verdict),
    ]


def test_bad_rows_cost_themselves(read: Read) -> None:
    found = read(
        talk(("human", "a"), ("gpt", "b"), ("narrator", "?"), ("human", "lost"), ("gpt", "c"), ("human", "d")),
        {"conversations": [{"from": "human", "value": "no answer"}]},
        7,
        talk(("gpt", None), ("gpt", "e")),
        talk(("human", "a"), ("gpt", "b"), tools="[", label=True),
    )
    assert [str(one).split(": ", 1)[1].split(" is none")[0] for one in found.refused] == [
        "entry 1, row 2: from 'narrator'",
        "entry 1, row 3: the turn that it answers could not be read",
        "entry 2 has no row from gpt, so there is no turn",
        "entry 3 is a JSON number, not an object",
        "entry 5: `tools` is not JSON: Expecting value: line 1 column 2 (char 1)",
    ]
    assert found.answers() == [("b", []), ("c", ["d"]), (None, []), ("e", []), ("b", ["label"])]
    assert found.turns[2].finish_reason == "aborted", "an answer that says nothing was cut off"


def test_the_same_ids_in_every_layout(tmp_path: Path) -> None:
    entries = [talk(("human", f"q{n}"), ("gpt", "a" * 100_000)) for n in range(3)]
    listed = tmp_path / "list.json"
    listed.write_text(json.dumps(entries, indent=2))
    lines = write_lines(tmp_path / "lines.jsonl", entries)
    packed = tmp_path / "lines.jsonl.gz"
    packed.write_bytes(gzip.compress(lines.read_bytes()))
    ids = [[event.id for event in Imported(sharegpt, path).events] for path in (listed, lines, packed)]
    assert ids[0] == ids[1] == ids[2]
    assert same_events(sharegpt, lines, lines)
    again = Imported(sharegpt, write_lines(tmp_path / "twice.jsonl", [*entries, "{broken", entries[0]]))
    assert [one.line for one in again.refused] == [4, 5]
    assert "word for word" in again.refused[1].reason


def test_other_formats_are_not_taken_for_this_one() -> None:
    for text in ('{"messages": [{"role": "user"}]}', '{"conversations": [{"role": "user"}]}', '{"items": []}', "[]"):
        assert not sharegpt.sniff(Head("f", text.encode(), True))
    assert sharegpt.sniff(Head("f", b'{"items": [{"from": "human", "value": "x', False))
