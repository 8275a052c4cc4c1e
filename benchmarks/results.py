"""What a benchmark gives: rows with a baseline and a ratio, printed as a table and kept as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Result:
    """One measured number. `baseline` is the number that it is compared with, `ratio` value / baseline."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    baseline_name: str | None = None

    @property
    def ratio(self) -> float | None:
        """`value` / `baseline`; None where there is no baseline."""
        return None if not self.baseline else self.value / self.baseline


Benchmark = Callable[[Console, str | None], list[Result]]
"""Given where to print, and the size that the user asked for."""


def machine() -> dict[str, str | int | None]:
    """What the numbers were measured on."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        )
        if Path("/proc/cpuinfo").exists()
        else iter(()),
        platform.processor(),
    )
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}


def save(directory: Path, benchmark: str, results: list[Result]) -> Path:
    """Write `NAME.json` and return its path."""
    rows = [asdict(result) | {"ratio": result.ratio} for result in results]
    path = directory / f"{benchmark}.json"
    directory.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"benchmark": benchmark, "machine": machine(), "results": rows}, indent=2) + "\n")
    return path


def show(console: Console, benchmark: str, results: list[Result]) -> None:
    """Print the rows."""
    table = Table(title=benchmark, title_justify="left")
    for column in ("what", "value", "unit", "baseline", "ratio"):
        table.add_column(column, justify="left" if column in ("what", "unit", "baseline") else "right")
    for result in results:
        baseline = "–" if result.baseline is None else f"{result.baseline:,.2f} ({result.baseline_name})"
        ratio = "–" if result.ratio is None else f"{result.ratio:.3f}"
        table.add_row(result.name, f"{result.value:,.2f}", result.unit, baseline, ratio)
    console.print(table)
