"""A manifest names every file's bytes, holds no clock, and tells what is wrong with a version."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from learner.checkpoints import write_version
from learner.config import no_fault
from learner.manifest import Lineage, has_weights, manifest_digest, problems, weights_digest

LINEAGE = Lineage(policy="p", version=3, parent_version=2, run="r", micro_batch_id="b", recipe_digest="d")


def fill(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"weights")
    (directory / "config.json").write_text("{}")


def test_the_manifest_on_disk_is_the_one_that_is_named(tmp_path: Path) -> None:
    manifest = write_version(tmp_path / "v", LINEAGE, fill, fault=no_fault)
    data = (tmp_path / "v" / "manifest.json").read_bytes()
    assert json.loads(data) == manifest
    assert hashlib.sha256(data).hexdigest() == manifest_digest(manifest)
    assert manifest["files"]["model.safetensors"] == {"sha256": hashlib.sha256(b"weights").hexdigest(), "bytes": 7}
    assert (manifest["parent_version"], manifest["micro_batch_id"], manifest["recipe_digest"]) == (2, "b", "d")


def test_equal_versions_have_equal_manifests(tmp_path: Path) -> None:
    one, other = (write_version(tmp_path / name, LINEAGE, fill, fault=no_fault) for name in ("a", "b"))
    assert manifest_digest(one) == manifest_digest(other)
    assert LINEAGE.made(one)
    assert not Lineage(policy="p", version=3, parent_version=2, run="r", micro_batch_id="c", recipe_digest="d").made(
        one
    )


def test_only_weights_count_in_the_digest_of_weights(tmp_path: Path) -> None:
    def other_words(directory: Path) -> None:
        fill(directory)
        (directory / "config.json").write_text('{"a": 1}')

    def other_weights(directory: Path) -> None:
        fill(directory)
        (directory / "model.safetensors").write_bytes(b"Weights")

    first, second, third = (
        write_version(tmp_path / f"v{i}", LINEAGE, how, fault=no_fault)
        for i, how in enumerate((fill, other_words, other_weights))
    )
    assert weights_digest(first) == weights_digest(second) != weights_digest(third)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda d: (d / "model.safetensors").write_bytes(b"wEights"), "model.safetensors was changed"),
        (lambda d: (d / "model.safetensors").write_bytes(b"weight"), "has 6 bytes, the manifest says 7"),
        (lambda d: (d / "config.json").unlink(), "config.json is missing"),
        (lambda d: (d / "more.safetensors").write_bytes(b""), "more.safetensors is not in the manifest"),
        (lambda d: (d / "manifest.json").write_text("{}"), "is not the manifest that the database holds"),
        (lambda d: (d / "manifest.json").write_text("{"), "is not the manifest that the database holds"),
        (lambda d: (d / "model.safetensors").unlink(), "has no weight files any more"),
    ],
)
def test_every_harm_is_named(tmp_path: Path, harm: object, says: str) -> None:
    manifest = write_version(tmp_path / "v", LINEAGE, fill, fault=no_fault)
    assert problems(tmp_path / "v", manifest) == []
    assert callable(harm)
    harm(tmp_path / "v")
    (found,) = problems(tmp_path / "v", manifest)
    assert says in found
    assert str(tmp_path / "v") in found


def test_a_version_that_is_gone_is_named(tmp_path: Path) -> None:
    manifest = write_version(tmp_path / "v", LINEAGE, fill, fault=no_fault)
    assert problems(tmp_path / "w", manifest) == [f"{tmp_path / 'w'} is missing"]
    assert has_weights(tmp_path / "v")
    assert not has_weights(tmp_path / "w")
