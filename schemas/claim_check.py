"""Claim check: data too large for the log are kept whole in a blob store, named by their SHA-256."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Protocol

from schemas.digests import sha256_hex

_SCHEME = "sha256:"


class BlobMissing(LookupError):
    """A claim check whose blob is not there or is not what its name says."""


class BlobStore(Protocol):
    """Where claim checks are kept. `put` is durable when it returns; the same data twice is one blob."""

    def put(self, data: bytes) -> str:
        """Keep `data`; returns its reference."""
        ...

    def get(self, reference: str) -> bytes:
        """The data of `reference`.

        Raises:
            BlobMissing: it is not there, or its content does not match its name.
        """
        ...

    def delete(self, reference: str) -> bool:
        """Delete the data of `reference`, durably. Whether there were any."""
        ...


class DirectoryBlobStore:
    """A blob store in one directory, which every process that reads the log must see (a disk or a shared mount)."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, data: bytes) -> str:
        """See `BlobStore.put`: written beside, synced, then renamed."""
        name = sha256_hex(data)
        target = self._path(name)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=target.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
            _sync_directory(target.parent)
        return _SCHEME + name

    def get(self, reference: str) -> bytes:
        """See `BlobStore.get`."""
        name = _name(reference)
        if name is None:
            raise BlobMissing(f"{reference!r} is no claim check of this store")
        try:
            data = self._path(name).read_bytes()
        except FileNotFoundError as err:
            raise BlobMissing(f"blob {reference} is not in {self.root}") from err
        if sha256_hex(data) != name:
            raise BlobMissing(f"blob {reference} in {self.root} was changed: its content has another SHA-256")
        return data

    def delete(self, reference: str) -> bool:
        """See `BlobStore.delete`."""
        name = _name(reference)
        if name is None:
            return False
        try:
            self._path(name).unlink()
        except FileNotFoundError:
            return False
        _sync_directory(self._path(name).parent)
        return True

    def has(self, reference: str) -> bool:
        """Whether there are data of `reference`."""
        name = _name(reference)
        return name is not None and self._path(name).is_file()

    def _path(self, name: str) -> Path:
        return self.root / name[:2] / name


def _name(reference: str) -> str | None:
    """The file's name; None where `reference` is none of this store."""
    name = reference.removeprefix(_SCHEME)
    whole = name != reference and len(name) == 64 and all(c in "0123456789abcdef" for c in name)
    return name if whole else None


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
