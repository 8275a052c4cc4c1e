"""`python -m benchmarks [NAME] [--size long]`: run every benchmark, or one, print a table and write
build/bench/NAME.json."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from benchmarks import gateway, importing, learner, main_path, pipeline, queue, replay
from benchmarks.results import Benchmark, save, show

BENCHMARKS: dict[str, Benchmark] = {
    "main_path": lambda console, _: main_path.run(console),
    "pipeline": pipeline.run,
    "gateway": gateway.run,
    "queue": queue.run,
    "learner": learner.run,
    "replay": replay.run,
    "importing": lambda console, _: importing.run(console),
}
ALL = tuple(name for name in BENCHMARKS if name != "importing")
"""`replay` has the importing in it."""


def main(arguments: list[str]) -> int:
    """Run the benchmarks of the given names, all where there are none; 2 for a name that is no benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument(
        "--size",
        choices=("small", "long", "gpu"),
        help="of the learner's batch, the replayed log, the pipeline's events",
    )
    given = parser.parse_args(arguments)
    console = Console()
    unknown = [name for name in given.names if name not in BENCHMARKS]
    if unknown:
        console.print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}")
        return 2
    for name in given.names or ALL:
        results = BENCHMARKS[name](console, given.size)
        show(console, name, results)
        console.print(f"written to {save(Path('build/bench'), name, results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
