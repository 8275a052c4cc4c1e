"""Steps for Weights & Biases, where the package is installed and a project is named. Offline unless asked otherwise:
runs are written to a directory, and `wandb sync` sends them when a person wants that.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Literal

from learner.watching.definitions import DEFINITIONS
from learner.watching.steps import StepSeen


class WandbRun:
    """One W&B run for each run that is seen, with its name as id, so that a restart goes on with the same curves.

    Raises:
        ImportError: wandb is not installed.
    """

    def __init__(self, project: str, directory: Path, mode: Literal["offline", "online"]) -> None:
        try:
            self._wandb: Any = importlib.import_module("wandb")
        except ImportError as err:
            raise ImportError(
                "W&B is asked for (HINDSTREAM_LEARNER__WATCH__WANDB_PROJECT) and the package wandb is not installed: "
                "`pip install wandb`, or unset the project"
            ) from err
        self._project, self._directory, self._mode = project, directory, mode
        self._runs: dict[str, Any] = {}

    def observe(self, step: StepSeen) -> None:
        """Log what the step has."""
        run = self._runs.get(step.run)
        if run is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            run = self._wandb.init(
                project=self._project, dir=str(self._directory), mode=self._mode, name=step.run, id=step.run,
                resume="allow", reinit="create_new", config={"policy": step.policy},
            )  # fmt: skip
            self._runs[step.run] = run
        points = {f"{DEFINITIONS[n].heading}/{n}": value for n, value in step.values().items() if n in DEFINITIONS}
        run.log(points, step=step.seq)

    def close(self) -> None:
        """End the runs."""
        for run in self._runs.values():
            run.finish()
