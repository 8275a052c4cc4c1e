"""`python -m benchmarks [NAME]`: run every benchmark, or one, print a table and write build/bench/NAME.json."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from benchmarks import main_path
from benchmarks.results import Benchmark, save, show

BENCHMARKS: dict[str, Benchmark] = {"main_path": main_path.run}


def main(names: list[str]) -> int:
    """Run the benchmarks of `names`, all where there are none; 2 for a name that is no benchmark."""
    console = Console()
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        console.print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}")
        return 2
    for name in names or BENCHMARKS:
        results = BENCHMARKS[name](console)
        show(console, name, results)
        console.print(f"written to {save(Path('build/bench'), name, results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
