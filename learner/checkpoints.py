"""Weight versions and trainer states on disk: written beside, synced, renamed. A crash leaves all or nothing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from learner.manifest import FILE, WEIGHT_SUFFIX, Lineage, build_manifest

_TEMPORARY = ".writing-"


class CheckpointMissing(LookupError):
    """A version or state that should be on disk is not: which, where, and what to do."""


def version_dir(weights_dir: Path, policy: str, version: int) -> Path:
    """Where a version lies."""
    return weights_dir / policy / f"v{version:06d}"


def state_file(weights_dir: Path, policy: str, version: int) -> Path:
    """Where the trainer's state after making a version lies."""
    return weights_dir / policy / "state" / f"v{version:06d}.pt"


def write_version(
    target: Path,
    lineage: Lineage,
    fill: Callable[[Path], None],
    *,
    fault: Callable[[str], None],
) -> dict[str, Any]:
    """Make a version directory whole: `fill` writes files into a temporary one, then manifest, sync and rename.

    A directory that is already at `target` belongs to a step that was never committed and is replaced.

    Raises:
        OSError: the disk is full or not writable; nothing is left at `target`.
    """
    temporary = target.parent / f"{_TEMPORARY}{target.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        fill(temporary)
        fault("mid_save")
        manifest = build_manifest(temporary, lineage)
        (temporary / FILE).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n")
        for path in temporary.iterdir():
            sync(path)
        sync(temporary)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if target.exists():
        shutil.rmtree(target)
    temporary.rename(target)
    sync(target.parent)
    return manifest


def copy_support_files(source: Path, target: Path) -> None:
    """Everything of a model directory but its weights and manifest: tokenizer, templates, generation settings."""
    for path in source.iterdir():
        if path.is_file() and path.name != FILE and not path.name.endswith((WEIGHT_SUFFIX, ".index.json")):
            shutil.copyfile(path, target / path.name)


def copy_model(source: Path, target: Path) -> None:
    """A whole model directory, by hard link where the file system can."""
    for path in source.iterdir():
        if not path.is_file() or path.name == FILE:
            continue
        try:
            os.link(path.resolve(), target / path.name)
        except OSError:
            shutil.copyfile(path, target / path.name)


def write_state(target: Path, state: dict[str, Any]) -> None:
    """Keep the trainer's state, durable when this returns."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f"{_TEMPORARY}{target.name}"
    try:
        torch.save(state, temporary)
        sync(temporary)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    temporary.rename(target)
    sync(target.parent)


def read_state(path: Path) -> dict[str, Any]:
    """The trainer's state, memory-mapped.

    Raises:
        CheckpointMissing: it is not there.
    """
    if not path.is_file():
        raise CheckpointMissing(
            f"{path} is missing: without the optimizer's state the next version would not be the one that an "
            "uninterrupted run makes; restore the file, or start a new policy from these weights"
        )
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return state


def prune(weights_dir: Path, policy: str, keep: Iterable[int], keep_states: Iterable[int]) -> list[int]:
    """Delete the weight files of versions that are not in `keep` (their manifest stays), and the states that are not
    in `keep_states`; also what a crash left half written. Returns the versions whose files went."""
    kept, kept_states = set(keep), set(keep_states)
    gone = []
    root = weights_dir / policy
    for directory in sorted(root.glob("v[0-9]*")):
        version = int(directory.name[1:])
        weights = list(directory.glob(f"*{WEIGHT_SUFFIX}"))
        if version not in kept and weights:
            for path in weights:
                path.unlink()
            gone.append(version)
    for path in (root / "state").glob("v*.pt"):
        if int(path.stem[1:]) not in kept_states:
            path.unlink()
    for leftover in root.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    return gone


def sync(path: Path) -> None:
    """fsync of a file or directory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems refuse fsync on a directory; its entry is then theirs to keep
            os.fsync(handle)
    finally:
        os.close(handle)
