"""`hindstream import` as a person uses it: directories, interruptions, lists of what was refused, formats of others."""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hindstream.cli import imports
from hindstream.cli.main import app
from producers import importers
from producers.importers import IMPORTERS, Row, tau_bench
from producers.importers.finding import find
from producers.importing import REFUSED_KEPT, import_file
from schemas.claim_check import DirectoryBlobStore
from schemas.envelope import WireRecord
from schemas.events import TurnRecorded
from schemas.publish import Position

DOCS = Path(__file__).parents[2] / "docs"
TRAJ = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


def entry(number: int) -> dict[str, Any]:
    return {"reward": 1.0, "trial": number, "traj": TRAJ}


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["import", *arguments])
    return result.exit_code, result.output


def test_a_directory_is_counted_by_file_and_in_all(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([entry(1), entry(2)]))
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(json.dumps([entry(3)]).encode()))
    (tmp_path / "notes.txt").write_text("notes")
    code, output = run("--dry-run", str(tmp_path))
    assert code == 0
    rows = {line.split()[0]: line.split()[1:] for line in output.splitlines() if line.strip()}
    assert rows["a.json"] == ["tau-bench", "2", "2", "2", "2", "0", "6", "0"]
    assert rows["b.json.gz"] == ["tau-bench", "1", "1", "1", "1", "0", "3", "0"]
    assert rows["all"] == ["3", "3", "3", "3", "0", "9", "0"]
    assert f"left out, of no format that is known: 1 ({tmp_path / 'notes.txt'})" in output


def test_many_files_are_summed_by_format(tmp_path: Path) -> None:
    for number in range(41):
        (tmp_path / f"{number}.json").write_text(json.dumps([entry(number)]))
    code, output = run("--dry-run", str(tmp_path))
    assert code == 0
    assert re.search(r"41 files +tau-bench +41 +41 +41 +41 +0 +123 +0\n", output)


def test_every_refused_row_can_be_written_down(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    broken = REFUSED_KEPT + 7
    path.write_text(json.dumps([entry(1), *(f"no entry {number}" for number in range(broken))], indent=1))
    code, output = run("--dry-run", "--refused-to", str(tmp_path / "refused.jsonl"), str(path))
    assert code == 0
    assert len(re.findall(r"refused log.json:\d+: entry", output)) == 50
    assert f"refused log.json: {broken - 50} more rows; --refused-to FILE writes all of them" in output
    rows = [json.loads(line) for line in (tmp_path / "refused.jsonl").read_text().splitlines()]
    assert len(rows) == broken
    first = len(json.dumps([entry(1)], indent=1).splitlines())
    assert rows[0] == {
        "path": str(path),
        "file": "log.json",
        "line": first,
        "reason": "entry 2 is a JSON string, not an object",
        "excerpt": '"no entry 0"',
    }


class Broker:
    """Takes `room` chunks; then somebody presses Ctrl-C."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.records: list[WireRecord] = []

    def publish(self, topic: str, records: list[WireRecord]) -> list[Position]:
        if not self.room:
            raise KeyboardInterrupt
        self.room -= 1
        self.records += records
        return []

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *fault: object) -> None:
        pass


def test_an_interrupted_import_is_finished_by_another_with_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps([entry(number) for number in range(300)]))
    broker = Broker(room=2)
    monkeypatch.setattr(imports, "_publisher", lambda settings: broker)
    monkeypatch.setenv("HINDSTREAM_HOME", str(tmp_path / "home"))
    code, output = run(str(path))
    assert code == 130
    assert f"interrupted at {path}; 512 of its events are on the log. Run the import again" in output
    interrupted = len(broker.records)
    broker.room = 100
    assert run(str(path))[0] == 0
    whole = Broker(room=100)
    (found,) = find([str(path)], IMPORTERS).files
    import_file(found.importer, path, whole, DirectoryBlobStore(tmp_path / "blobs"))
    said = {(record.key, record.value) for record in whole.records}
    assert len(said) == len(whole.records) == 900
    assert {(record.key, record.value) for record in broker.records} == said
    assert len(broker.records) == interrupted + 900


def test_formats_are_listed_with_what_they_are() -> None:
    code, output = run("--formats")
    assert code == 0
    assert [line.split()[0] for line in output.splitlines()] == list(IMPORTERS)
    assert "tau-bench           tau-bench's recorded runs: a JSON list of entries" in output
    assert run()[0] == 2


def test_every_format_has_its_row_in_the_documentation() -> None:
    page = (DOCS / "import-a-log.md").read_text()
    assert [name for name in IMPORTERS if f"`{name}`" not in page] == []
    linked = re.findall(r"\]\((importers/\w+\.md)\)", page)
    assert [name for name in linked if not (DOCS / name).is_file()] == []


@pytest.mark.parametrize("name", IMPORTERS)
def test_every_importer_keeps_the_contract(name: str) -> None:
    importer = IMPORTERS[name]
    assert name == importer.NAME
    assert importer.SOURCE
    assert (importer.__doc__ or "").splitlines()[0].endswith(".")


def test_the_documented_importer_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", (DOCS / "import-a-log.md").read_text(), flags=re.DOTALL)
    (tmp_path / "my_format_of_a_test.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    mine = EntryPoint("my-format", "my_format_of_a_test", importers.GROUP)
    broken = EntryPoint("broken", "no_such_module", importers.GROUP)
    taus = EntryPoint("tau-bench", tau_bench.__name__, importers.GROUP)
    monkeypatch.setattr(importers, "entry_points", lambda group: [mine, broken, taus])
    try:
        loaded = importers._Importers()
        assert list(loaded) == ["my-format", "tau-bench"], "what cannot be loaded takes nothing else away"
        path = tmp_path / "log.json"
        path.write_text('[{"question": "q", "answer": "a"}, {"question": "r", "answer": "b"}]')
        (found,) = find([str(path)], loaded).files
        rows: Iterator[Row] = found.importer.read(path)
        turns = [row.data for row in rows if hasattr(row, "data") and isinstance(row.data, TurnRecorded)]
        assert [(turn.messages[0]["content"], turn.response.content) for turn in turns] == [("q", "a"), ("r", "b")]
    finally:
        sys.modules.pop("my_format_of_a_test", None)
