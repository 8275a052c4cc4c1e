"""The manifest of a weight version: each file's SHA-256 and the lineage. No clock, so equal weights have equal ones."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.digests import canonical_json, sha256_hex

FILE = "manifest.json"
WEIGHT_SUFFIX = ".safetensors"
_READ_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """Where a version comes from; everything but the policy is None for version 0."""

    policy: str
    version: int
    parent_version: int | None = None
    run: str | None = None
    micro_batch_id: str | None = None
    micro_batch_digest: str | None = None
    recipe_name: str | None = None
    recipe_digest: str | None = None


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def build_manifest(directory: Path, lineage: Lineage) -> dict[str, Any]:
    """The manifest of the files that lie in `directory` now, itself left out."""
    files = {
        path.name: {"sha256": file_sha256(path), "bytes": path.stat().st_size}
        for path in sorted(directory.iterdir())
        if path.is_file() and path.name != FILE
    }
    return {"format": 1, **lineage.__dict__, "files": files}


def manifest_digest(manifest: dict[str, Any]) -> str:
    """SHA-256 of the manifest's canonical JSON: the name of everything that it names."""
    return sha256_hex(canonical_json(manifest))


def weights_digest(manifest: dict[str, Any]) -> str:
    """Digest of the weight files alone: equal where two versions hold the same weights."""
    weights = {name: entry["sha256"] for name, entry in manifest["files"].items() if name.endswith(WEIGHT_SUFFIX)}
    return sha256_hex(canonical_json(weights))


def problems(directory: Path, manifest: dict[str, Any]) -> list[str]:
    """What is wrong with a version's files: missing, changed, unexpected, or another manifest. Empty where whole."""
    found = []
    for name, entry in manifest["files"].items():
        path = directory / name
        if not path.is_file():
            found.append(f"{path} is missing")
        elif path.stat().st_size != entry["bytes"]:
            found.append(f"{path} has {path.stat().st_size} bytes, the manifest says {entry['bytes']}")
        elif file_sha256(path) != entry["sha256"]:
            found.append(f"{path} was changed: its SHA-256 is not the manifest's")
    stored = directory / FILE
    if not stored.is_file():
        found.append(f"{stored} is missing")
    elif json.loads(stored.read_text()) != manifest:
        found.append(f"{stored} is not the manifest that the database holds")
    return found
