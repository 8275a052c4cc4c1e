"""`hindstream import FILE` just works: the format from content, compressed or not, in directories and patterns."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from producers.importers import IMPORTERS, Row
from producers.importers.detect import HEAD_BYTES, Head, head_of
from producers.importers.finding import NotImportable, candidates, find
from producers.importers.open_files import lines_of, open_log, watched_by
from producers.importing import survey_file

FORMAT_OF = {
    "asciicast/text-group-input.cast": "asciicast",
    "claude_code/cua_nmap_session.jsonl": "claude-code",
    "claude_code/sample_session.json": "claude-code",
    "codex/function_calls.jsonl": "codex",
    "langfuse/microsoft-agent-2025-12-17.trace.json": "langfuse",
    "langfuse/openai-agents-2025-09-30.trace.json": "langfuse",
    "langsmith/anthropic_managed_custom_tools.jsonl": "langsmith",
    "openclaw_pi/large-session.head.jsonl": "openclaw",
    "opencua/agentnetbench_s_df0fd37049f470c2.json": "opencua",
    "openhands/basic.json": "openhands-history",
    "openhands/basic_gui_mode.json": "openhands-history",
    "openhands/sdk_events.jsonl": "openhands-events",
    "sharegpt/fastchat_dummy_conversation.json": "sharegpt",
    "swe_agent/i_got_id_demo_v0.traj": "swe-agent",
    "swe_agent/marshmallow-1867_function_calling.traj": "swe-agent",
    "swe_agent/test-repo-1c2844.traj": "swe-agent",
    "tau_bench/gpt-4o-airline.subset.json": "tau-bench",
    "webarena/verified_108_network.docs.har": "webarena",
}
"""What somebody who reads the files' origin calls each."""

ENTRY = {"reward": 1.0, "traj": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
COMPRESS: list[Callable[[bytes], bytes]] = [gzip.compress, zstandard.ZstdCompressor().compress]


@pytest.fixture
def tau(tmp_path: Path) -> Path:
    path = tmp_path / "log.json"
    path.write_text(json.dumps([ENTRY]))
    return path


@pytest.mark.parametrize("file", FORMAT_OF)
def test_exactly_one_format_fits_each_file(shared_dir: Path, file: str) -> None:
    assert candidates(head_of(shared_dir / "data" / file), IMPORTERS) == [FORMAT_OF[file]]


def test_every_file_of_conversations_is_in_the_list(shared_dir: Path) -> None:
    data = shared_dir / "data"
    there = {str(p.relative_to(data)) for p in data.rglob("*") if p.is_file() and p.suffix not in (".txt", ".md")}
    assert there - set(FORMAT_OF) == {"webarena/verified_108_eval_result.json"}, "a verdict beside a HAR file"


@pytest.mark.parametrize("file", FORMAT_OF)
@pytest.mark.parametrize("damage", [0.5, 0.9, 0.99])
def test_damage_further_on_changes_no_format(shared_dir: Path, file: str, damage: float) -> None:
    whole = head_of(shared_dir / "data" / file)
    at = max(int(len(whole.data) * damage), min(8192, len(whole.data) - 1))
    for data in (whole.data[:at], whole.data[:at] + b"\xff\x00" + whole.data[at + 2 :]):
        assert candidates(Head(whole.name, data, whole.whole), IMPORTERS) == [FORMAT_OF[file]]


def sniffing(head: Head) -> list[bool]:
    return [importer.sniff(head) for importer in IMPORTERS.values()]


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_no_sniff_raises(data: bytes) -> None:
    assert len(sniffing(Head("any", data, True))) == len(IMPORTERS)


# fmt: off
KEYS = [
    "traj", "trajectory", "history", "messages", "conversations", "steps", "log", "entries", "type", "role",
    "payload", "observations", "trace", "id", "inputs", "outputs", "resourceSpans", "version", "message",
    "action", "source", "kind",
]
# fmt: on
json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(json_like)
def test_no_sniff_raises_for_json_of_any_shape(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value) + "\n" + json.dumps(value)):
        assert len(sniffing(Head("any.json", text.encode(), True))) == len(IMPORTERS)


def test_a_head_shows_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "long.json"
    path.write_text('\ufeff{"a": 1, "steps": [{"b": [2, {"text": "' + "x" * HEAD_BYTES)
    head = head_of(path)
    assert (head.whole, head.value, head.lines) == (False, {"a": 1, "steps": [{"b": [2, {}]}]}, [])
    lines = Head("l.jsonl", b'{"a": 1}\n\nbroken\n{"b": 2}\n{"c"', False)
    assert (lines.value, lines.object, lines.lines) == ({"a": 1}, {"a": 1}, [{"a": 1}, {"b": 2}])
    assert Head("x", b'[{"lone": "\\ud800", "n": tru', False).object == {"lone": "?"}
    assert [Head("x", data, True).value for data in (b"", b"plain text", b"[" * 100_000)] == [None] * 3


@pytest.mark.parametrize("compress", COMPRESS)
def test_compressed_files_are_read_as_they_are(tmp_path: Path, tau: Path, compress: Callable[[bytes], bytes]) -> None:
    packed = tmp_path / "packed.json.gz"  # the name says nothing: the first bytes do
    packed.write_bytes(compress(tau.read_bytes()) + compress(b"   "))  # two members: both are read
    (found,) = find([str(packed)], IMPORTERS).files
    events = [row for row in found.importer.read(packed) if not isinstance(row, str)]
    assert [event.id for event in events if hasattr(event, "id")] == [
        event.id for event in found.importer.read(tau) if hasattr(event, "id")
    ]


@pytest.mark.parametrize("compress", COMPRESS)
@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_compressed_file_gives_what_is_whole_and_says_so(
    tmp_path: Path, compress: Callable[[bytes], bytes], damage: str
) -> None:
    entries = [ENTRY | {"trial": number, "note": f"{number * 7919 % 1000003}"} for number in range(5_000)]
    packed = compress(json.dumps(entries, indent=1).encode())
    path = tmp_path / "cut.json.gz"
    at = len(packed) * 9 // 10
    path.write_bytes(packed[:at] if damage == "cut" else packed[:at] + b"\0" * 64 + packed[at + 64 :])
    report = survey_file(IMPORTERS["tau-bench"], path)
    assert 2_500 < report.sessions < 5_000
    assert "breaks off or is damaged" in str(report.refused[0])


class Bytes:
    """Counts what is read."""

    count = 0

    def read(self, count: int) -> None:
        self.count += count

    def damaged(self, path: Path, reason: str) -> None:
        raise AssertionError(reason)


def test_the_watcher_hears_of_the_files_own_bytes(tmp_path: Path) -> None:
    path = tmp_path / "big.gz"
    path.write_bytes(gzip.compress(bytes(range(256)) * 8192))
    watcher = Bytes()
    with watched_by(watcher), open_log(path) as file:
        assert len(file.read()) == 256 * 8192
    assert watcher.count == path.stat().st_size
    with open_log(path) as file:
        file.read(10)
    assert watcher.count == path.stat().st_size


def test_lines_have_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"\xef\xbb\xbfa\r\n\n  \nb" + b"x" * 300_000 + b"\nlast")
    assert [(line.number, line.data[:4], len(line.data)) for line in lines_of(path)] == [
        (1, b"a", 1),
        (4, b"bxxx", 300_001),
        (5, b"last", 4),
    ]


# --- which files -----------------------------------------------------------------------------------------------------


def names(given_: list[str], **more: Any) -> tuple[list[str], list[tuple[str, str]]]:
    found = find(given_, IMPORTERS, **more)
    return [one.path.name for one in found.files], [(path.name, why) for path, why in found.skipped]


def test_a_directory_gives_what_is_known_and_says_what_is_not(tmp_path: Path, tau: Path) -> None:
    (tmp_path / "notes.txt").write_text("my notes")
    (tmp_path / "empty.json").touch()
    (tmp_path / ".hidden.json").write_text(tau.read_text())
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "more.json").write_text(tau.read_text())
    skipped = [("empty.json", "the file is empty"), ("notes.txt", "of no format that is known")]
    assert names([str(tmp_path)]) == (["more.json", "log.json"], skipped)
    assert names([str(tmp_path), str(tau)])[0] == ["more.json", "log.json"], "no file twice"
    assert names([str(tmp_path / "**" / "*.json")])[0] == ["more.json", "log.json"]


def test_a_file_named_as_such_must_be_known(tmp_path: Path, tau: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("my notes")
    with pytest.raises(
        NotImportable, match=r"notes.txt: of no format that is known \(.*swe-agent, tau-bench.*--format"
    ):
        find([str(tau), str(notes)], IMPORTERS)
    assert names([str(notes)], format_name="tau-bench")[0] == ["notes.txt"]
    with pytest.raises(NotImportable, match=r"tau-bench: no such file; a format is .* --format tau-bench"):
        find(["tau-bench", str(tau)], IMPORTERS)
    with pytest.raises(NotImportable, match="no file fits this pattern"):
        find([str(tmp_path / "*.nothing")], IMPORTERS)
    with pytest.raises(NotImportable, match=r"there is no such format; there are .*tau-bench"):
        find([str(tau)], IMPORTERS, "tau")
    with pytest.raises(FileNotFoundError):
        find([str(tmp_path / "nowhere.json")], IMPORTERS)


def test_two_formats_that_fit_are_both_named(tmp_path: Path, tau: Path) -> None:
    def read(path: Path) -> Iterator[Row]:
        return iter(())

    class Twin(SimpleNamespace):
        NAME: str
        SOURCE: str
        sniff: Callable[[Head], bool]
        read: Callable[[Path], Iterator[Row]]

    def fails(head: Head) -> bool:
        raise TypeError("not my kind")

    twin = Twin(NAME="twin", SOURCE="test", sniff=lambda head: True, read=read)
    both = {"tau-bench": IMPORTERS["tau-bench"], "twin": twin, "faulty": Twin(NAME="faulty", sniff=fails)}
    with pytest.raises(NotImportable, match=r"log.json: may be tau-bench or twin; say which with --format"):
        find([str(tau)], both)
    assert find([str(tmp_path)], both).skipped == [(tau, "may be tau-bench or twin; say which with --format")]
    assert find([str(tau)], both, "twin").files[0].importer is twin
    assert find([str(tmp_path)], both, "twin").files[0].importer is twin


def test_what_a_reader_reads_beside_its_file_is_not_called_unknown(shared_dir: Path) -> None:
    assert names([str(shared_dir / "data" / "webarena")]) == (["verified_108_network.docs.har"], [])
