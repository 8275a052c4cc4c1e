"""Copies of weight versions on storage that fsspec reaches: S3 and what speaks like it, GCS, a mounted directory.

A copy lies at `URL/POLICY/v000003/`, file by file as on disk. Its manifest goes last: a copy with a manifest is whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]

from learner.checkpoints import beside, put_in_place, sync_all, version_dir
from learner.config import no_fault
from learner.manifest import FILE
from learner.stored import Version
from schemas.digests import canonical_json

_PIECE = 16 << 20
"""Bytes of one read: few round trips to a storage that answers in tens of milliseconds, little memory."""


class StorageFault(RuntimeError):
    """A copy that is not there or not what it must be; the message says which file and what to do."""


class Storage:
    """A place for copies.

    Args:
        url: as fsspec names it, `s3://bucket/prefix`.
        options: of fsspec's file system for that kind of URL: keys, endpoint.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.url = url
        self._fs, root = fsspec.url_to_fs(url, **options)
        self._root = root.rstrip("/")

    def put(self, version: Version, fault: Callable[[str], None] = no_fault) -> int:
        """Copy a version and read every byte of it back. Returns its size in bytes. What an interrupted try left is
        written again.

        Raises:
            StorageFault: another version is there under this name, which is not replaced, or other bytes came back.
            OSError: a file cannot be read; and whatever the storage's library raises.
        """
        place = self._place(version.policy, version.version)
        manifest = canonical_json(version.manifest)
        self._fs.invalidate_cache()
        if self._fs.exists(f"{place}/{FILE}") and self._fs.cat_file(f"{place}/{FILE}") != manifest:
            raise StorageFault(
                f"{place} holds a version of another lineage: the storage belongs to another database. Choose another "
                "prefix (HINDSTREAM_LEARNER__UPLOAD_URL)"
            )
        self._fs.makedirs(place, exist_ok=True)
        for name, entry in version.manifest["files"].items():
            if not self._holds(f"{place}/{name}", entry):
                self._fs.put_file(str(version.path / name), f"{place}/{name}")
                fault("mid_upload")
                self._check(f"{place}/{name}", entry)
        self._fs.pipe_file(f"{place}/{FILE}", manifest)
        return sum(int(entry["bytes"]) for entry in version.manifest["files"].values())

    def get(self, policy: str, version: int, manifest: Mapping[str, Any], target: Path) -> None:
        """Have a version's files in the directory `target`, each compared with its manifest; what is there goes.

        Raises:
            StorageFault: there is no whole copy of this very version.
            OSError: the disk is full; and whatever the storage's library raises. `target` is as it was.
        """
        place = self._place(policy, version)
        self._fs.invalidate_cache()
        if not self._fs.exists(f"{place}/{FILE}"):
            raise StorageFault(f"there is no whole copy of version {version} at {place}")
        if self._fs.cat_file(f"{place}/{FILE}") != canonical_json(manifest):
            raise StorageFault(f"{place} holds a version of another lineage than version {version} of this database")
        with beside(target, ".fetching-") as temporary:
            for name, entry in manifest["files"].items():
                self._check(f"{place}/{name}", entry, temporary / name)
            (temporary / FILE).write_bytes(canonical_json(manifest))
            sync_all(temporary)
            put_in_place(temporary, target)

    def _place(self, policy: str, version: int) -> str:
        return f"{self._root}/{version_dir(Path(), policy, version).as_posix()}"

    def _holds(self, path: str, entry: Mapping[str, Any]) -> bool:
        """Whether this very file is there already; only a file of the right size is read."""
        if not self._fs.exists(path) or self._fs.size(path) != entry["bytes"]:
            return False
        return self._digest(path, None) == str(entry["sha256"])

    def _check(self, path: str, entry: Mapping[str, Any], copy: Path | None = None) -> None:
        digest = self._digest(path, copy)
        if digest != entry["sha256"]:
            raise StorageFault(f"{path} is not what the manifest names: its SHA-256 is {digest[:12]}")

    def _digest(self, path: str, copy: Path | None) -> str:
        digest = hashlib.sha256()
        out = None if copy is None else copy.open("wb")
        try:
            with self._fs.open(path, "rb", block_size=_PIECE) as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
                    if out is not None:
                        out.write(piece)
        finally:
            if out is not None:
                out.close()
        return digest.hexdigest()
