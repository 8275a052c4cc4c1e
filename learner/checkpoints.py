"""Weight versions on disk: written beside, synced, renamed. A crash leaves all of a version or nothing."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from learner.errors import LearnerStopped
from learner.manifest import DELTA_SUFFIX, FILE, PRUNING, WEIGHT_SUFFIX, Lineage, build_manifest, read_manifest
from schemas.digests import canonical_json

TEMPORARY = ".writing-"
LOCK = ".lock"


def policy_dir(weights_dir: Path, policy: str) -> Path:
    """Where the versions of a policy lie. A name that is no file name is escaped."""
    name = quote(policy, safe=" ")
    return weights_dir / (name.replace(".", "%2E", 1) if name.startswith(".") else name)


def version_dir(weights_dir: Path, policy: str, version: int) -> Path:
    """Where a version is written."""
    return policy_dir(weights_dir, policy) / f"v{version:06d}"


def locate(path: str, weights_dir: Path, policy: str, version: int) -> Path:
    """Where a version lies: where it was written, or the same place below `weights_dir` where that was moved."""
    written = Path(path)
    return written if written.is_dir() else version_dir(weights_dir, policy, version)


@contextmanager
def only_writer(weights_dir: Path, policy: str) -> Iterator[None]:
    """Hold the policy's directory; the kernel lets go of it however the process ends.

    Raises:
        LearnerStopped: another process holds it, or it cannot be written.
    """
    directory = policy_dir(weights_dir, policy)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory / LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as err:
        raise LearnerStopped(
            f"the weights of policy {policy!r} cannot be written to {directory} ({err.strerror}): make it writable, or "
            "choose another directory (HINDSTREAM_LEARNER__WEIGHTS_DIR)"
        ) from err
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as err:
            raise LearnerStopped(
                f"another learner is at work in {directory}: a policy has one learner, since its versions are one chain"
            ) from err
        yield
    finally:
        os.close(handle)


def refuse_foreign(target: Path, lineage: Lineage) -> None:
    """Refuse a directory that is in the way and was not made by an interrupted try of this very step.

    Raises:
        LearnerStopped: it is another version's, so the database and the directory do not belong together.
    """
    if not target.exists():
        return
    found = read_manifest(target)
    if found is None or not lineage.made(found):
        raise LearnerStopped(
            f"{target} holds a version that this database does not know: the directory belongs to another database. "
            "Move it away, or choose another one (HINDSTREAM_LEARNER__WEIGHTS_DIR)"
        )


Fill = Callable[[Path], Mapping[str, Any] | None]
"""Writes a version's files into a directory, and gives what its manifest says beside the files and the lineage."""


def write_version(target: Path, lineage: Lineage, fill: Fill, *, fault: Callable[[str], None]) -> dict[str, Any]:
    """Make a version directory whole: `fill` writes files into a temporary one, then manifest, sync and rename.
    Returns the manifest.

    A directory that an interrupted try of the same step left at `target` is replaced: nobody was told of it.

    Raises:
        LearnerStopped: another version's directory is at `target`.
        OSError: the disk is full or not writable; `target` is as it was.
    """
    refuse_foreign(target, lineage)
    with beside(target) as temporary:
        more = fill(temporary)
        fault("mid_save")
        manifest = build_manifest(temporary, lineage, more)
        fault("before_manifest")
        (temporary / FILE).write_bytes(canonical_json(manifest))
        sync_all(temporary)
        fault("after_manifest_before_rename")
        put_in_place(temporary, target)
    fault("after_rename")
    return manifest


@contextmanager
def beside(target: Path, prefix: str = TEMPORARY) -> Iterator[Path]:
    """An empty directory on the disk of `target`, gone at the end unless it was renamed. `prefix`: another one for who
    does not hold the policy's directory, since a learner that starts clears what is left under its own."""
    temporary = target.parent / f"{prefix}{target.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def put_in_place(temporary: Path, target: Path) -> None:
    """Have `temporary`, whose files are synced, at `target`; what is there goes."""
    if target.exists():
        shutil.rmtree(target)
    temporary.rename(target)
    _sync(target.parent)


def copy_support_files(source: Path, target: Path) -> None:
    """Everything of a version but its weights, manifest and what `target` has of its own: tokenizer, templates."""
    for path in source.iterdir():
        copied = path.is_file() and not path.name.endswith((WEIGHT_SUFFIX, DELTA_SUFFIX, ".index.json", FILE))
        if copied and not (target / path.name).exists():
            shutil.copyfile(path, target / path.name)


def copy_model(source: Path, target: Path) -> None:
    """The files of a model directory. Copied, not linked: a program that writes the original in place must not change
    a version."""
    for path in source.iterdir():
        if path.is_file() and path.name != FILE and not path.name.startswith("."):
            shutil.copyfile(path, target / path.name)


def prune(directory: Path, *, fault: Callable[[str], None]) -> bool:
    """Delete a version's files, all but its manifest. Returns whether there were any.

    A mark lies there meanwhile: where a crash leaves some of the files, the version counts as deleted, and the next
    call finishes.
    """
    files = [path for path in directory.iterdir() if path.name not in (FILE, PRUNING)]
    mark = directory / PRUNING
    if not files and not mark.exists():
        return False
    mark.touch()
    _sync(directory)
    for path in sorted(files):
        path.unlink()
        fault("mid_prune")
    mark.unlink()
    return True


def clear_leftovers(weights_dir: Path, policy: str) -> None:
    """Delete what a crash left half written. Only for who holds the policy's directory (`only_writer`)."""
    for leftover in policy_dir(weights_dir, policy).glob(f"{TEMPORARY}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def sync_all(directory: Path) -> None:
    """Have the files in `directory`, and their names, on the disk, for whoever may read the directory: safetensors
    makes files that only their owner may read, and a server may be another account."""
    mode = directory.stat().st_mode & 0o666
    for path in directory.iterdir():
        path.chmod(mode)
        _sync(path)
    _sync(directory)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        if path.is_dir():
            with suppress(OSError):  # some file systems refuse fsync on a directory; its entries are theirs to keep
                os.fsync(handle)
        else:
            os.fsync(handle)
    finally:
        os.close(handle)
