"""What of a version goes to disk: all weights, what differs from an earlier version, or an adapter."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Protocol

from learner.checkpoints import Fill
from learner.config import LearnerConfig
from learner.deltas import make_delta, stored_bytes
from learner.determinism import made_on
from learner.manifest import file_entries, manifest_digest
from learner.stored import Version

_FULL = ".full"


class Writes(Protocol):
    """What writes the policy's files: `learner.policy.Policy`."""

    @property
    def has_adapter(self) -> bool:
        """Whether only low-rank adapters learn."""

    def write(self, directory: Path) -> None:
        """Every weight, in HuggingFace layout."""

    def write_adapter(self, directory: Path) -> None:
        """The adapters alone, in peft's layout."""


def filling(policy: Writes, config: LearnerConfig, version: int, full: Version, under: Version) -> Fill:
    """Writes version `version` as the kind that `config.publish` names.

    A delta is made from `full`, the newest full version. Where that is `config.full_every` versions back, or the delta
    would not be smaller, the version is full. An adapter names `under`, whose weights lie under it; where that is not
    full, nobody could load the adapter, and the version is full too.
    """

    def fill(directory: Path) -> dict[str, Any]:
        more = {"made_on": made_on(config)}
        if config.publish == "adapter" and under.kind == "full":
            policy.write_adapter(directory)
            return {"kind": "adapter", "base": _named(under), **more}
        if config.publish != "delta" or version - full.version >= config.full_every:
            policy.write(directory)
            return {"kind": "full", **more}
        whole = directory / _FULL
        whole.mkdir()
        policy.write(whole)
        result = make_delta(full.path, whole, directory)
        if stored_bytes(directory) < stored_bytes(whole):
            shutil.rmtree(whole)
            return {"kind": "delta", "base": _named(full), "result": result, **more}
        for path in [path for path in directory.iterdir() if path.is_file()]:
            path.unlink()
        for path in whole.iterdir():
            path.rename(directory / path.name)
        whole.rmdir()
        return {"kind": "full", **more}

    return fill


def written_files(policy: Writes, kind: str, directory: Path) -> dict[str, dict[str, Any]]:
    """Write the policy as it is seen by who loads a version of this kind; SHA-256 and size of each file."""
    if kind == "adapter":
        policy.write_adapter(directory)
    else:
        policy.write(directory)
    return file_entries(directory)


def _named(version: Version) -> dict[str, Any]:
    return {"version": version.version, "manifest_sha256": manifest_digest(version.manifest)}
