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
    fault: Callable[[str], None] = no_fault,
) -> None:
    """Keep the state of the version that `manifest_sha256` names, and only the newest few; `under` is the version whose
    weights lie under its adapters. What an interrupted try left half written goes too: it may be as large as a state.

    Raises:
        OSError: it could not be written; the states before are as they were.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f"{TEMPORARY}{target.name}"
    state = {"version": version, "run": run, "manifest_sha256": manifest_sha256, "under": under, "trainer": trainer}
    try:
        torch.save(state, temporary)
        fault("mid_state_save")
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    for old in [*sorted(target.parent.glob("v*.pt"))[:-STATES_KEPT], *target.parent.glob(f"{TEMPORARY}*")]:
        old.unlink()


def read_states(weights_dir: Path, policy: str, newest: int) -> Iterator[dict[str, Any]]:
    """The whole states up to version `newest`, the newest first. Damaged ones are passed over."""
    for path in sorted(state_file(weights_dir, policy, 0).parent.glob("v*.pt"), reverse=True):
        if int(path.stem[1:]) <= newest and _is_whole(path):
            yield torch.load(path, map_location="cpu", weights_only=True)


def _is_whole(path: Path) -> bool:
    """torch's file is a zip archive with a CRC-32 of every tensor."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, EOFError, OSError):  # or deleted meanwhile, by the learner at work
        return False
