"""A weight version where it lies: whole, or as what makes it out of its base."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select

from learner.checkpoints import beside, locate, put_in_place
from learner.deltas import DeltaFault, apply_delta
from learner.errors import LearnerStopped
from learner.manifest import FILE, base_of, has_weights, kind_of, manifest_digest, problems, read_manifest, result_files
from schemas.digests import canonical_json
from schemas.tables import weight_versions


@dataclass(frozen=True)
class Version:
    """A weight version where it lies now."""

    policy: str
    version: int
    path: Path
    manifest: dict[str, Any]

    @property
    def tag(self) -> str:
        """What the server stamps its tokens with."""
        return str(self.version)

    @property
    def kind(self) -> str:
        """`full`, `delta` or `adapter`."""
        return kind_of(self.manifest)


def stored_version(connection: Connection, weights_dir: Path, policy: str, version: int) -> Version:
    """A version as its row says.

    Raises:
        LookupError: there is no such version.
    """
    row = connection.execute(
        select(weight_versions.c.path, weight_versions.c.manifest).where(
            weight_versions.c.policy == policy, weight_versions.c.version == version
        )
    ).one_or_none()
    if row is None:
        raise LookupError(f"policy {policy!r} has no version {version}")
    return Version(policy, version, locate(row.path, weights_dir, policy, version), row.manifest)


def base_version(connection: Connection, weights_dir: Path, version: Version) -> Version | None:
    """The version that `version` names as its base; None for a full one."""
    base = base_of(version.manifest)
    return None if base is None else stored_version(connection, weights_dir, version.policy, base)


def faults(version: Version, base: Version | None) -> list[str]:
    """What is wrong with a version's files and with those of its base; for a delta also whether the result comes out.
    Empty where all is whole. It reads every byte."""
    found = problems(version.path, version.manifest)
    if base is None:
        return found
    named = version.manifest["base"]["manifest_sha256"]
    if manifest_digest(base.manifest) != named:
        found.append(f"its base, version {base.version}, has another manifest than the one that it was made from")
    if version.kind == "adapter":
        return found + problems(base.path, base.manifest)
    if not found:
        try:
            apply_delta(base.path, version.path, result_files(version.manifest), None)
        except (DeltaFault, OSError) as err:
            found.append(str(err))
    return found


def assemble(version: Version, base: Version, target: Path) -> Version:
    """A delta as a full version in `target`; what lies there is replaced, or used where it is that already.

    Raises:
        DeltaFault: something else comes out than the manifest names.
        OSError: the disk is full or not writable; `target` is as it was.
    """
    plain = {name: value for name, value in version.manifest.items() if name not in ("kind", "base", "result")}
    full = Version(version.policy, version.version, target, {**plain, "files": result_files(version.manifest)})
    if read_manifest(target) == full.manifest and not problems(target, full.manifest):
        return full
    with beside(target) as temporary:
        apply_delta(base.path, version.path, full.manifest["files"], temporary)
        (temporary / FILE).write_bytes(canonical_json(full.manifest))
        put_in_place(temporary, target)
    return full


def newest_full(connection: Connection, weights_dir: Path, policy: str) -> Version:
    """The newest full version whose files are there: what the next delta is made from.

    Raises:
        LearnerStopped: not even version 0 is.
    """
    rows = connection.execute(
        select(weight_versions.c.version, weight_versions.c.path, weight_versions.c.manifest)
        .where(weight_versions.c.policy == policy)
        .order_by(weight_versions.c.version.desc())
    )
    for row in rows:
        path = locate(row.path, weights_dir, policy, row.version)
        if kind_of(row.manifest) == "full" and has_weights(path):
            return Version(policy, row.version, path, row.manifest)
    raise LearnerStopped(f"policy {policy!r} has no full version in {weights_dir}: restore the files of version 0")
