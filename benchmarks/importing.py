"""Importing: how fast files of SWE-agent become records, beside `orjson.loads` of the same bytes, and how much memory a
file of 1 GB takes.

Measured is what an import does but for the broker: finding the format, reading, linking, checking and encoding every
event as the record that would be sent. The broker's part is that of any producer.
"""

from __future__ import annotations

import gc
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from benchmarks.results import Result
from producers.importers import IMPORTERS
from producers.importers.finding import find
from producers.importing import import_file
from schemas.claim_check import DirectoryBlobStore
from schemas.envelope import WireRecord
from schemas.publish import Position

_DIRECTORY = Path("build/bench/importing")
_SAMPLES = Path(__file__).resolve().parents[2] / "shared/data/swe_agent"
_RUNS = 300
"""Files of the speed part: some 25 MB, half a second each time."""
_ROUNDS = 5
"""The best of so many counts, for both sides: on a machine with other work the mean measures that work."""
_LARGE = 1_000_000_000
_MEGABYTE = 1e6


class Nowhere:
    """A publisher without a broker."""

    def __init__(self) -> None:
        self.bytes = 0

    def publish(self, topic: str, records: Sequence[WireRecord]) -> list[Position]:
        """Count, and forget."""
        self.bytes += sum(len(record.value) for record in records)
        return []


def run(console: Console) -> list[Result]:
    """Both parts; their files are gone afterwards."""
    shutil.rmtree(_DIRECTORY, ignore_errors=True)
    _DIRECTORY.mkdir(parents=True)
    try:
        return [*_speed(console), _memory(console)]
    finally:
        shutil.rmtree(_DIRECTORY, ignore_errors=True)


def _speed(console: Console) -> list[Result]:
    paths = _files(console)
    size = sum(path.stat().st_size for path in paths)
    nowhere = Nowhere()
    imported = min(_seconds(lambda: _import(paths, nowhere)) for _ in range(_ROUNDS))
    parsed = min(_seconds(lambda: _parse(paths)) for _ in range(_ROUNDS))
    console.print(
        f"{len(paths)} files, {size / _MEGABYTE:.1f} MB, became records of "
        f"{nowhere.bytes / _ROUNDS / _MEGABYTE:.1f} MB: each turn carries the messages before it"
    )
    rate, baseline = size / imported / _MEGABYTE, size / parsed / _MEGABYTE
    name = "orjson.loads alone"
    return [
        Result(name="import_mb_per_s", value=rate, unit="MB/s", baseline=baseline, baseline_name=name),
        Result(name="ratio_orjson", value=rate / baseline, unit="of its rate"),
    ]


def _memory(console: Console) -> Result:
    path = _DIRECTORY / "large.json"
    console.print(f"writing {_LARGE / 1e9:g} GB …")
    _write_large(path)
    size = path.stat().st_size / _MEGABYTE
    console.print("importing it in a process of its own …")
    started = time.perf_counter()
    child = subprocess.run(
        [sys.executable, "-m", "benchmarks.importing", str(path)], check=True, stdout=subprocess.PIPE, text=True
    )
    peak, events = (float(number) for number in child.stdout.split())
    console.print(f"{events:,.0f} events in {time.perf_counter() - started:.0f} s")
    return Result(
        name="import_peak_memory_mb", value=peak, unit="MB", baseline=size, baseline_name="the file, a JSON list, in MB"
    )


def _import(paths: list[Path], nowhere: Nowhere) -> None:
    blobs = DirectoryBlobStore(_DIRECTORY / "blobs")
    for found in find(map(str, paths), IMPORTERS).files:
        import_file(found.importer, found.path, nowhere, blobs)


def _parse(paths: list[Path]) -> None:
    for path in paths:
        orjson.loads(path.read_bytes())


def _seconds(work: Callable[[], None]) -> float:
    """Of this process's CPU time: nothing here waits, and a neighbour's work is not ours."""
    gc.collect()
    started = time.process_time()
    work()
    return time.process_time() - started


def _files(console: Console) -> list[Path]:
    """Real runs, if they are beside the checkout, as many times over as needed; else some of the same kind."""
    samples = [path.read_text() for path in sorted(_SAMPLES.glob("*.traj"))] if _SAMPLES.is_dir() else []
    console.print("real SWE-agent runs" if samples else "synthetic runs: the real ones are not beside the checkout")
    paths = []
    for number in range(_RUNS):
        run = json.loads(samples[number % len(samples)]) if samples else _synthetic(number)
        run["environment"] = f"run {number}"  # another session
        path = _DIRECTORY / f"{number:04}.traj"
        path.write_text(json.dumps(run, indent=2))
        paths.append(path)
    return paths


def _synthetic(number: int) -> dict[str, Any]:
    """A run of 12 steps in the shape, and with the sizes, of the real ones."""
    chance = random.Random(number)
    history: list[dict[str, Any]] = [{"role": "system", "content": _text(chance, 4000)}]
    history.append({"role": "user", "content": _text(chance, 3000)})
    steps = []
    for step in range(12):
        response, observation = _text(chance, 400), _text(chance, 2500)
        call = {
            "id": f"call_{step}",
            "type": "function",
            "function": {"name": "bash", "arguments": '{"command": "ls"}'},
        }
        history.append({"role": "assistant", "content": response, "tool_calls": [call], "action": "ls"})
        history.append({"role": "tool", "content": observation, "tool_call_ids": [call["id"]]})
        steps.append({"action": "ls", "observation": observation, "response": response, "state": {}})
    return {"environment": "", "trajectory": steps, "history": history, "info": {"exit_status": "submitted"}}


def _write_large(path: Path) -> None:
    """A JSON list of conversations as tau-bench writes them."""
    chance, written, number = random.Random(0), 2, 0
    with path.open("w") as file:
        file.write("[\n")
        while written < _LARGE:
            traj = [{"role": "system", "content": _text(chance, 6000)}]
            for _ in range(8):
                traj.append({"role": "user", "content": _text(chance, 300)})
                traj.append({"role": "assistant", "content": _text(chance, 600)})
            entry = {"task_id": number, "reward": number % 2, "info": {}, "traj": traj, "trial": 0}
            written += file.write((",\n" if number else "") + json.dumps(entry, indent=1))
            number += 1
        file.write("\n]\n")


def _text(chance: random.Random, length: int) -> str:
    start = chance.randrange(4096)
    return (_PROSE * (2 + (start + length) // len(_PROSE)))[start : start + length]


_PROSE = "".join(
    f'def step_{n}(state):\n    """Line {n}."""\n    return state["{n * 7919 % 1009}"] + {n}\n' for n in range(200)
)


def main(path: Path) -> None:
    """Import one file to nowhere; print this process's peak memory in MB and the number of events."""
    (found,) = find([str(path)], IMPORTERS).files
    report = import_file(found.importer, found.path, Nowhere(), DirectoryBlobStore(path.parent / "blobs"))
    print(_peak_mb(), report.events)


def _peak_mb() -> float:
    """Not `getrusage`: its peak is also that of the process which started this one."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / _MEGABYTE


if __name__ == "__main__":
    main(Path(sys.argv[1]))
