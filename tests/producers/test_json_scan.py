"""JSON read item by item: from a stream as from memory, whatever the file holds and wherever a read ends."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from producers.importers import json_scan
from producers.importers.json_scan import Broken, Item, read_text, scan_list, scan_object, stream_list
from producers.importers.json_sound import scan_sound_object

many = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of some hundred bytes is then one larger than memory."""
    monkeypatch.setattr(json_scan, "CHUNK", 1)
    monkeypatch.setattr("producers.importers.json_scanner.CHUNK", 1)


@given(
    items=st.lists(st.dictionaries(st.text(max_size=5), anything, max_size=3) | anything, max_size=6),
    indent=st.sampled_from([None, 0, 1, 2]),
    escape=st.booleans(),
    at=st.floats(0, 1),
    cut=st.sampled_from([0, 0, 1, 2, 30, 10_000]),
    put=st.binary(max_size=4) | st.sampled_from([b"]", b'"', b"}\n", b",\n {", b"\xff"]),
)
@many
@pytest.mark.usefixtures("small_chunks")
def test_a_stream_gives_what_memory_gives(
    tmp_path: Path, items: list[object], indent: int | None, escape: bool, at: float, cut: int, put: bytes
) -> None:
    whole = json.dumps(items, indent=indent, ensure_ascii=escape).encode("utf-8", "surrogatepass")
    where = int(at * len(whole))
    path = tmp_path / "file.json"
    path.write_bytes(whole[:where] + put + whole[where + cut :])
    assert repr(list(stream_list(path))) == repr(list(scan_list(read_text(path))))


@pytest.mark.usefixtures("small_chunks")
def test_lines_and_columns_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text('[\n {"a": 1},\n {"a": x},\n {"a": "é"}, {"b": 12345},\n 7.5\n] 8')
    assert list(stream_list(path)) == [
        Item({"a": 1}, 2),
        Broken(
            3,
            "not JSON at line 3, column 8: Expecting value; reading went on at line 4",
            '{"a": x},  {"a": "\\xe9"}, {"b": 12345},  7.5 ] 8',
        ),
        Item({"a": "é"}, 4),
        Item({"b": 12345}, 4),
        Item(7.5, 5),
        Broken(6, "text after the end of the list", "8"),
    ]


@pytest.mark.parametrize("indent", [None, 1])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "file.json"
    item = json.dumps({"text": "x" * 100_000}, indent=indent)
    with path.open("w") as file:
        file.write("[" + ",".join([item] * 300) + "]")
    tracemalloc.start()
    try:
        assert sum(isinstance(item, Item) for item in stream_list(path)) == 300
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()


@given(
    fields=st.dictionaries(st.sampled_from(["a", "b", '"é', "list"]), anything, max_size=4),
    indent=st.sampled_from([None, 0, 2]),
    escape=st.booleans(),
    at=st.floats(0, 1),
    put=st.sampled_from([b"", b"", b"\n", b'"a": 1,', b" ", b"x", b"\\ud800", b"\xff"]),
)
@many
def test_the_fast_way_gives_what_the_careful_way_gives(
    fields: dict[str, Any], indent: int | None, escape: bool, at: float, put: bytes
) -> None:
    whole = json.dumps(fields, indent=indent, ensure_ascii=escape).encode("utf-8", "surrogatepass")
    where = int(at * len(whole))
    text = (whole[:where] + put + whole[where:]).decode("utf-8", "surrogateescape")
    fast, lists = scan_sound_object(text, frozenset({"list"})), frozenset({"list"})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_scan, "scan_sound_object", lambda text, lists: None)
        careful = scan_object(text, lists)
    if fast is not None:
        assert careful.broken == []
        assert repr({name: (one.line, one.value, one.items) for name, one in fast.items()}) == repr(
            {name: (one.line, one.value, one.items) for name, one in careful.fields.items()}
        )


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 2}', '{"a": 1} x', "[]", '{"a": NaN}', '{"a": "\\ud800"}', "", '{"a": 1']
)
def test_the_fast_way_leaves_the_rest_to_the_careful_one(text: str) -> None:
    assert scan_sound_object(text, frozenset()) is None
