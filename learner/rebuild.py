"""A version made again from its parent and the micro-batch log, and compared with the one that was announced.

The parent is the trainer after the version before, with its moments: from the newest whole state that is older than the
version, or from version 0. On a CPU with the same torch the files come out the same, byte for byte; each step is taken
with as many threads as the first time.

On a GPU operations that add in no fixed order change the last bits of a gradient, and AdamW turns a gradient near zero
into a step of either sign. So the weights agree only closely: `Rebuilt.deviation` is the distance between the two
versions over the distance that training has gone since version 0. `BOUND` is the most that is accepted; with
`--deterministic` both times, the files are the same on one kind of GPU as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from safetensors import safe_open
from sqlalchemy import Engine

from learner.checkpoints import beside, locate, version_dir
from learner.config import LearnerConfig
from learner.database import in_transaction
from learner.deltas import apply_delta
from learner.determinism import differences
from learner.errors import LearnerStopped
from learner.fold import fold, version_rows
from learner.manifest import WEIGHT_SUFFIX, base_of, has_weights, kind_of, result_files
from learner.publishing import written_files

BOUND = 0.05
"""Of `Rebuilt.deviation`. Two runs of the same steps whose gradients differ in the last bits stay within a few percent
of the way that they went; a sample more or less, or another order, is off by tens of percent."""

_TEMPORARY = ".rebuilding-"
_AS_RECORDED = ("dtype", "tokens_per_forward")
"""What the version says about how it was made, and the settings need not."""


@dataclass(frozen=True, kw_only=True)
class Rebuilt:
    """What came out.

    Attributes:
        version: which.
        begin: the version after which training was taken up; its state was loaded, or it is 0.
        files: for each file of the version, whether it came out the same, byte for byte.
        elsewise: what the version was made with and this process has otherwise, in words.
        deviation: L2 distance of the weights from the stored ones over the stored ones' distance from version 0; 0.0
            where every file is the same, None where the stored weights are gone.
        deterministic_device: whether equal bytes are expected, as on a CPU.
    """

    version: int
    begin: int
    files: dict[str, bool]
    elsewise: list[str]
    deviation: float | None
    deterministic_device: bool

    @property
    def same(self) -> bool:
        """Whether every file is the same, byte for byte."""
        return all(self.files.values())

    @property
    def accepted(self) -> bool:
        """Same bytes; or, where they cannot be expected, weights within `BOUND`."""
        if self.same:
            return True
        expected = self.deterministic_device and not self.elsewise
        return not expected and self.deviation is not None and self.deviation <= BOUND


def rebuild(
    config: LearnerConfig,
    engine: Engine,
    stop: Event,
    version: int,
    *,
    from_base: bool = False,
    keep: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Rebuilt:
    """Make `version` of `config.policy` again. No row and no version on disk is changed.

    Args:
        config: of the learner; dtype, tokens a forward pass and threads are taken from the version.
        engine: of the database.
        stop: set it to give up.
        version: from 1 on.
        from_base: take up at version 0, whatever states are there.
        keep: a directory for the files, which must not exist; by default they are deleted.
        say: gets a line about what is done.

    Raises:
        LearnerStopped: there is no such version, or the base model or a sample is not as it was.
        OSError: the disk is full or not writable.
        Stopped: `stop` was set meanwhile.
    """
    rows = in_transaction(engine, stop, partial(version_rows, policy=config.policy))
    if not 0 < version < len(rows):
        raise LearnerStopped(
            f"policy {config.policy!r} has versions 0 to {len(rows) - 1}, and version 0 is the base model: there is no "
            f"version {version} to be made"
        )
    if keep is not None and keep.exists():
        raise LearnerStopped(f"{keep} exists already: name a directory that does not")
    row = rows[version]
    recorded = row.manifest.get("made_on", {})
    config = replace(config, **{name: recorded.get(name, getattr(config, name)) for name in _AS_RECORDED})
    policy, steps = fold(config, engine, stop, rows[: version + 1], state_until=0 if from_base else version - 1)
    begin = version - steps
    say(f"version {version}: trained again from version {begin}, {steps} micro-batches")
    target = keep or version_dir(config.weights_dir, config.policy, version)
    with beside(target, _TEMPORARY) as made:
        wanted = result_files(row.manifest)
        written = written_files(policy, kind_of(row.manifest), made)
        files = {name: written.get(name) == entry for name, entry in wanted.items()}
        same = all(files.values())
        deviation = 0.0 if same else _deviation(config, rows, row, made)
        if keep is not None:
            made.rename(keep)
    return Rebuilt(
        version=version,
        begin=begin,
        files=files,
        elsewise=sorted({line for one in rows[begin + 1 : version + 1] for line in differences(one.manifest, config)}),
        deviation=deviation,
        deterministic_device=config.device == "cpu",
    )


def _deviation(config: LearnerConfig, rows: list[Any], row: Any, made: Path) -> float | None:
    """Distance from the stored weights over the way from version 0, both L2."""

    def place(of: Any) -> Path:
        return locate(of.path, config.weights_dir, config.policy, of.version)

    stored, base = place(row), base_of(row.manifest)
    if not has_weights(stored):
        return None
    with ExitStack() as stack:
        if kind_of(row.manifest) == "delta" and base is not None:
            scratch = stack.enter_context(beside(made / "stored", _TEMPORARY))
            apply_delta(place(rows[base]), stored, result_files(row.manifest), scratch)
            stored = scratch
        apart, way = _squares(made, stored), _squares(stored, place(rows[0]))
    if kind_of(row.manifest) == "adapter":  # version 0 has none of its tensors: the way is the adapter itself
        way = _squares(stored, None)
    return math.sqrt(apart / way) if way else math.inf


def _squares(one: Path, other: Path | None) -> float:
    """Sum of the squared differences of the tensors that both directories hold, or of `one` alone."""
    with ExitStack() as stack:
        mine = _open(stack, one)
        theirs = {} if other is None else _open(stack, other)
        total = 0.0
        for name, file in mine.items():
            if other is not None and name not in theirs:
                continue
            values = file.get_tensor(name).float()
            if other is not None:
                values -= theirs[name].get_tensor(name).float()
            total += float(values.double().square().sum())
        return total


def _open(stack: ExitStack, directory: Path) -> dict[str, Any]:
    """Each tensor's file, opened."""
    found: dict[str, Any] = {}
    for path in sorted(directory.glob(f"*{WEIGHT_SUFFIX}")):
        file = stack.enter_context(safe_open(path, "pt"))
        found |= dict.fromkeys(file.keys(), file)
    return found
