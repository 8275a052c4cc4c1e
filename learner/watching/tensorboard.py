"""Steps for TensorBoard: one curve a metric over the micro-batches of the run, under `DIRECTORY/RUN`."""

from __future__ import annotations

from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from learner.watching.definitions import DEFINITIONS
from learner.watching.steps import StepSeen

_FLUSH_S = 5
"""A person who watches waits this long for a point; torch's default is two minutes."""


class TensorBoardFiles:
    """Event files of one learner. A restart adds a file beside the older ones; TensorBoard joins them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writers: dict[str, SummaryWriter] = {}

    def observe(self, step: StepSeen) -> None:
        """One point on the curve of each metric that the step has."""
        writer = self._writers.get(step.run)
        if writer is None:
            writer = SummaryWriter(str(self._directory / step.run), flush_secs=_FLUSH_S)
            self._writers[step.run] = writer
        for name, value in step.values().items():
            if name in DEFINITIONS:
                writer.add_scalar(f"{DEFINITIONS[name].heading}/{name}", value, step.seq)

    def close(self) -> None:
        """Write everything out."""
        for writer in self._writers.values():
            writer.close()
