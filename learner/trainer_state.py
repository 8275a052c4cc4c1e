"""The trainer's state beside a version: float32 master weights and AdamW's moments, exact.

A state is a cache. Lost, damaged or skipped ones are made again by folding the micro-batches that follow the newest
whole one (`learner.fold`), from the base model on if need be. So states are not synced to disk before anything is
announced: on a disk of 200 MB/s that would take 8 s a step for 135M parameters, longer than the step itself. What the
kernel has of them outlives any death of the process; a power cut may tear one, which its checksums show.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from learner.checkpoints import TEMPORARY, policy_dir
from learner.config import no_fault
from learner.sharding import recut

STATES_KEPT = 2
"""The newest and the one before, should the newest be torn."""


def state_file(weights_dir: Path, policy: str, version: int) -> Path:
    """Where the state after making `version` lies."""
    return policy_dir(weights_dir, policy) / "state" / f"v{version:06d}.pt"


def write_state(
    target: Path,
    *,
    version: int,
    run: str,
    manifest_sha256: str,
    under: int = 0,
    trainer: dict[str, Any],
    ranks: int = 1,
    saving: str = "",
    fault: Callable[[str], None] = no_fault,
) -> None:
    """Keep the state of the version that `manifest_sha256` names, and only the newest few; `under` is the version whose
    weights lie under its adapters. What an interrupted try left half written goes too: it may be as large as a state.

    Where there are several `ranks`, this is the first one's, whose parts of the tensors are in `trainer`, and the
    others' are there already (`write_part`) under the same `saving`, a name of this attempt.

    Raises:
        OSError: it could not be written; the states before are as they were.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f"{TEMPORARY}{target.name}"
    state = {
        "version": version,
        "run": run,
        "manifest_sha256": manifest_sha256,
        "under": under,
        "ranks": ranks,
        "saving": saving,
        "trainer": trainer,
    }
    try:
        torch.save(state, temporary)
        fault("mid_state_save")
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    kept = {path.name for path in sorted(target.parent.glob("v*.pt"))[-STATES_KEPT:]}
    for path in target.parent.iterdir():
        name, _, of = path.name.partition(".pt.")
        stale = of and path.name.startswith(target.name) and not of.endswith(f"of{ranks}")
        if (f"{name}.pt" if of else name) not in kept or stale:
            path.unlink()


def write_part(target: Path, rank: int, ranks: int, saving: str, trainer: dict[str, Any]) -> None:
    """Keep what rank `rank` holds of the state that will be at `target`.

    Raises:
        OSError: it could not be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = _part(target, rank, ranks)
    temporary = part.parent / f"{TEMPORARY}{part.name}"
    try:
        torch.save({"saving": saving, "trainer": trainer}, temporary)
        os.replace(temporary, part)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_trainer(path: Path, rank: int = 0, ranks: int = 1) -> dict[str, Any]:
    """What rank `rank` of `ranks` holds of the whole state at `path`, by however many ranks it was saved."""
    first = _load(path)
    saved = first.get("ranks", 1)
    if saved == ranks:
        own = torch.load(_part(path, rank, ranks) if rank else path, map_location="cpu", weights_only=True)
        return dict(own["trainer"])
    others = [_load(_part(path, other, saved)) for other in range(1, saved)]
    return dict(recut([part["trainer"] for part in [first, *others]], rank, ranks))


def read_states(weights_dir: Path, policy: str, newest: int) -> Iterator[dict[str, Any]]:
    """The whole states up to version `newest`, the newest first; of those of several ranks, the first one's. Damaged
    ones are passed over."""
    for path in sorted(state_file(weights_dir, policy, 0).parent.glob("v*.pt"), reverse=True):
        if int(path.stem[1:]) > newest or not _is_whole(path):
            continue
        state = _load(path)
        ranks = state.get("ranks", 1)
        others = [_part(path, rank, ranks) for rank in range(1, ranks)]
        if all(_is_whole(part) and _load(part)["saving"] == state["saving"] for part in others):
            yield state


def _part(target: Path, rank: int, ranks: int) -> Path:
    return target.with_name(f"{target.name}.{rank}of{ranks}")


def _load(path: Path) -> dict[str, Any]:
    """A file of a state; tensors are read when they are looked at."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return state


def _is_whole(path: Path) -> bool:
    """torch's file is a zip archive with a CRC-32 of every tensor."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, EOFError, OSError):  # or deleted meanwhile, by the learner at work
        return False
