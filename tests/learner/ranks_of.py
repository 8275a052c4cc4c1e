"""Jobs for several ranks, run from a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]


class Ranks:
    """Runs jobs of `tests.learner.rank_jobs`, each on as many processes as it asks."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.learner.rank_process"],
            cwd=ROOT,
            env={
                **os.environ,
                "OMP_WAIT_POLICY": "PASSIVE",
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(ROOT / "tests" / "learner"),  # where pytest has tests find their helpers
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ends(self, name: str, ranks: int, *, out: Path | None = None, **arguments: Any) -> list[int]:
        """How each rank ended: its exit code, or minus the signal."""
        job = {"name": name, "ranks": ranks, "out": out, "arguments": arguments}
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.write(json.dumps(job, default=str) + "\n")
        self._server.stdin.flush()
        ends: list[int] = json.loads(self._server.stdout.readline())
        return ends

    def result(self, name: str, ranks: int, **arguments: Any) -> Any:
        """What the first rank gave."""
        out = self._place / "result.pt"
        assert self.ends(name, ranks, out=out, **arguments) == [0] * ranks
        return torch.load(out)

    def close(self) -> None:
        """End the process that forks; it has nothing to put in order."""
        self._server.kill()
        self._server.wait()
