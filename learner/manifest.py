"""The manifest of a weight version: each file's SHA-256, its kind, the lineage, and what it was made with. No clock, so
equal weights of equal origin have equal ones.

Three kinds. `full`: every weight. `delta`: what differs from the version `base`; `result` names the files that come out
when both are put together. `adapter`: LoRA matrices in PEFT's layout, for the weights of the version `base`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from schemas.digests import canonical_json, sha256_hex

FILE = "manifest.json"
WEIGHT_SUFFIX = ".safetensors"
DELTA_SUFFIX = ".delta"
PRUNING = ".pruning"
"""Lies in a directory whose files are being deleted, so that a crash in the middle leaves no half of a version."""
KINDS = ("full", "delta", "adapter")
_READ_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """Where a version comes from; everything but the policy is None for version 0. `tokenizer`: fingerprint of what
    made tokens of text (`schemas.chat_tokens`); None, and no part of the manifest, where nothing did."""

    policy: str
    version: int
    parent_version: int | None = None
    run: str | None = None
    micro_batch_id: str | None = None
    micro_batch_digest: str | None = None
    recipe_name: str | None = None
    recipe_digest: str | None = None
    tokenizer: str | None = None

    def said(self) -> dict[str, Any]:
        """The lineage as a manifest holds it."""
        return {name: value for name, value in asdict(self).items() if name != "tokenizer" or value is not None}

    def made(self, manifest: dict[str, Any]) -> bool:
        """Whether `manifest` is of a version with just this lineage."""
        return all(manifest.get(name) == value for name, value in asdict(self).items())


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def build_manifest(directory: Path, lineage: Lineage, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The manifest of the files that lie in `directory` now, itself left out. `more` goes in as it is: kind, base,
    result, what it was made with."""
    return {"format": 1, **lineage.said(), **(more or {}), "files": file_entries(directory)}


def file_entries(directory: Path) -> dict[str, dict[str, Any]]:
    """SHA-256 and size in bytes of each file in `directory`, by name, the manifest left out."""
    return {
        path.name: {"sha256": file_sha256(path), "bytes": path.stat().st_size}
        for path in sorted(directory.iterdir())
        if path.is_file() and path.name != FILE
    }


def kind_of(manifest: Mapping[str, Any]) -> str:
    """One of `KINDS`."""
    return str(manifest.get("kind", "full"))


def base_of(manifest: Mapping[str, Any]) -> int | None:
    """The version that this one needs to be whole; None for a full one."""
    base = manifest.get("base")
    return None if base is None else int(base["version"])


def result_files(manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The files that a server or trainer gets to see: those on disk, or those that a delta and its base make."""
    files: dict[str, dict[str, Any]] = manifest.get("result", manifest["files"])
    return files


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """The manifest that lies in `directory`; None where there is none that can be read."""
    try:
        manifest = msgspec.json.decode((directory / FILE).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    return manifest if isinstance(manifest, dict) else None


def manifest_digest(manifest: dict[str, Any]) -> str:
    """SHA-256 of the manifest's canonical JSON: the name of everything that it names."""
    return sha256_hex(canonical_json(manifest))


def weights_digest(manifest: dict[str, Any]) -> str:
    """Digest of the weight files alone: equal where two versions hold the same weights, a delta's put together."""
    weights = {name: entry["sha256"] for name, entry in result_files(manifest).items() if name.endswith(WEIGHT_SUFFIX)}
    return sha256_hex(canonical_json(weights))


def has_weights(directory: Path) -> bool:
    """Whether the weights are there, or what makes them out of a base; retention deletes those of old versions."""
    if (directory / PRUNING).exists():
        return False
    return any(path.name.endswith((WEIGHT_SUFFIX, DELTA_SUFFIX)) for path in directory.glob("*"))


def problems(directory: Path, manifest: dict[str, Any]) -> list[str]:
    """What is wrong with a version's files: missing, changed, unexpected, or another manifest. Empty where whole."""
    if not directory.is_dir():
        return [f"{directory} is missing"]
    if not has_weights(directory):
        return [f"{directory} has no weight files any more: retention deleted them (`hindstream weights fetch`)"]
    found = [wrong for name, entry in manifest["files"].items() if (wrong := _file_problem(directory / name, entry))]
    # A server loads every weight file that it finds, one that nobody announced too.
    found += [
        f"{path} is not in the manifest"
        for path in sorted(directory.glob("*"))
        if path.name.endswith((WEIGHT_SUFFIX, DELTA_SUFFIX)) and path.name not in manifest["files"]
    ]
    if read_manifest(directory) != manifest:
        found.append(f"{directory / FILE} is not the manifest that the database holds")
    return found


def _file_problem(path: Path, entry: dict[str, Any]) -> str | None:
    if not path.is_file():
        return f"{path} is missing"
    if path.stat().st_size != entry["bytes"]:
        return f"{path} has {path.stat().st_size} bytes, the manifest says {entry['bytes']}"
    if file_sha256(path) != entry["sha256"]:
        return f"{path} was changed: its SHA-256 is not the manifest's"
    return None
