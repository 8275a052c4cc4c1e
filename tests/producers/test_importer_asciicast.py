"""asciicast: turns are what was typed up to Enter, next states the output that follows, in both versions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from producers.importers import asciicast
from producers.importers.detect import Head
from tests.producers.imported import Imported, same_events, write_lines

FILE = "data/asciicast/text-group-input.cast"
V2 = {"version": 2, "width": 80, "height": 24, "timestamp": 1_000_000_000}
V3 = {"version": 3, "term": {"cols": 80, "rows": 24}, "timestamp": 1_000_000_000}
Read = Callable[..., Imported]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Writes rows as a recording and reads it."""

    def rows_read(*rows: Any) -> Imported:
        return Imported(asciicast, write_lines(tmp_path / "rec.cast", rows))

    return rows_read


def test_the_shared_file_counted_by_its_lines(shared_dir: Path) -> None:
    found = Imported(asciicast, shared_dir / FILE)
    lines = (shared_dir / FILE).read_text().splitlines()
    keys = [line.split('"')[3] for line in lines if '"i"' in line]
    assert (len(lines), len(keys), sum('"o"' in line for line in lines)) == (16, 13, 2)
    assert not any("\\r" in one or "\\n" in one for one in keys), "no key is Enter, so all of them are one turn"
    assert found.counts() == {
        "sessions": 1,
        "turns": 1,
        "next_states": {"terminal_output": 1},
        "verdicts": 0,
        "refused": 0,
    }
    assert found.answers() == [("".join(keys), ["done\r\n"])]
    assert found.asked(0) == [("user", "start\r\n")]
    assert found.turns[0].finish_reason == "stop"
    assert found.turns[0].origin is not None
    assert (found.turns[0].origin.line, found.states[0].origin.line) == (3, 16)  # type: ignore[union-attr]


def test_commands_and_what_they_print(read: Read) -> None:
    found = read(
        V2, [0.1, "o", "$ "], [1, "i", "l"], [1.1, "o", "l"], [1.2, "i", "s\r"], [1.3, "o", "\r\n"],
        [1.4, "o", "a  b\r\n$ "],
        [2, "m", "marker"], [2, "r", "90x30"], [3, "i", "pwd\r"], [4, "i", "q"],
    )  # fmt: skip
    assert found.answers() == [("ls\r", ["l\r\na  b\r\n$ "]), ("pwd\r", []), ("q", [])]
    assert [turn.finish_reason for turn in found.turns] == ["stop", "stop", "aborted"]
    assert found.asked(2) == [
        ("user", "$ "),
        ("assistant", "ls\r"),
        ("user", "l\r\na  b\r\n$ "),
        ("assistant", "pwd\r"),
    ]
    assert (found.turns[0].started_at, found.turns[0].ended_at) == (
        "2001-09-09T01:46:41+00:00",
        "2001-09-09T01:46:41.200000+00:00",
    )
    assert found.states[0].observed_at == "2001-09-09T01:46:41.100000+00:00"


def test_version_3_counts_time_from_the_row_before_and_has_comments(read: Read) -> None:
    found = read(V3, "# a comment", [1, "i", "ls\r"], [1, "o", "a"], [1, "i", "x\r"], [1, "o", "b"], [0.5, "x", "1"])
    assert found.answers() == [("ls\r", ["a"]), ("x\r", ["b"])]
    assert [state.observed_at for state in found.states] == ["2001-09-09T01:46:42+00:00", "2001-09-09T01:46:44+00:00"]
    assert [state.exit_code for state in found.states] == [None, None], "the shell's status is no command's"


def test_a_header_later_than_its_first_row_and_rows_not_in_time_order(read: Read) -> None:
    found = read([5, "o", "$ "], [4, "i", "a\r"], V2, [3, "o", "x"])
    assert found.answers() == [("a\r", ["x"])], "the rows' own order counts"
    assert found.turns[0].started_at == "2001-09-09T01:46:44+00:00"


def test_several_commands_in_one_row(read: Read) -> None:
    found = read(V2, [1, "i", "a\rb\nc\r\nd"], [2, "o", "out"])
    assert found.answers() == [("a\r", []), ("b\n", []), ("c\r\n", []), ("d", ["out"])]


def test_a_long_recording_keeps_requests_short(read: Read) -> None:
    rows: list[Any] = [V2]
    for number in range(50):
        rows += [[number, "i", f"{number}\r"], [number, "o", f"{number}:" + "x" * 100_000]]
    found = read(*rows)
    assert [len(state.content or "") for state in found.states] == [100_002] * 10 + [100_003] * 40, "outputs are whole"
    assert max(sum(len(text or "") for _, text in found.asked(n)) for n in range(50)) == asciicast.CONTEXT_CHARS
    assert found.asked(49) == [("user", "x" * asciicast.CONTEXT_CHARS)]


def test_bad_lines_cost_themselves(read: Read) -> None:
    found = read(
        V2, "[1, 'i'", [1, "i", "a\r"], [1, "i"], [1, "i", 7], ["1", "o", "x"], [1, "z", "x"], [1, ["i"], "x"], V2,
        {"version": 9}, "7", "[1e999, \"o\", \"y\"]",
    )  # fmt: skip
    assert [one.line for one in found.refused] == [2, 4, 5, 6, 7, 8, 9, 10, 11]
    assert found.answers() == [("a\r", ["y"])]


def test_a_recording_without_keys_is_refused(read: Read) -> None:
    found = read(V2, [1, "o", "only output"])
    assert not found.events
    assert "no keys" in found.refused[0].reason


def test_the_same_file_gives_the_same_ids(tmp_path: Path) -> None:
    rows = [V2, [1, "i", "a\r"], [2, "o", "null"]]
    one, other = write_lines(tmp_path / "a.cast", rows), write_lines(tmp_path / "b.cast", ["", *rows])
    assert [e.id for e in Imported(asciicast, one).events] == [e.id for e in Imported(asciicast, other).events]
    assert same_events(asciicast, one, one)


def test_what_is_taken_for_one() -> None:
    for header, ours in (
        (V2, True),
        (V3, True),
        ({"version": 1, "width": 80}, False),
        ({"version": True, "width": 1}, False),
    ):
        assert asciicast.sniff(Head("f", json.dumps(header).encode(), True)) is ours
    assert not asciicast.sniff(Head("f", b'[1, "o", "x"]', True))
