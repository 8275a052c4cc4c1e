"""Copies on every kind of storage: whole or not at all, read back, fetched again, never over another's."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from moto.server import ThreadedMotoServer

from learner import storage as storage_module
from learner.checkpoints import prune, version_dir, write_version
from learner.config import no_fault
from learner.manifest import Lineage, file_entries, has_weights, problems
from learner.service import run_learner
from learner.storage import Storage, StorageFault
from learner.stored import Version, base_version, faults, stored_version
from learner.upload import fetch, upload_missing
from tests.learner.learning import Learning, mixed

KINDS = ("file", "memory", "s3")


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    """fsspec's options of an S3-compatible server with a bucket named `bucket`."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    options = {"key": "test", "secret": "test", "endpoint_url": f"http://{host}:{port}"}
    fsspec.filesystem("s3", **options).mkdir("bucket")
    yield options
    server.stop()


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """(URL, options) of an empty place on the storage that the test is parametrised with."""
    kind = getattr(request, "param", "file")
    if kind == "s3":
        return f"s3://bucket/{tmp_path.name}", request.getfixturevalue("s3")
    return {"file": f"file://{tmp_path}/copies", "memory": f"memory://{tmp_path.name}"}[kind], {}


def made(tmp_path: Path, version: int = 3, content: str = "weights", name: str = "w") -> Version:
    """A version on disk with two files, one of them of a few megabytes."""

    def fill(directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(content.encode() * 500_000)
        (directory / "config.json").write_text("{}")

    target = version_dir(tmp_path / name, "p/q", version)
    manifest = write_version(target, Lineage(policy="p/q", version=version), fill, fault=no_fault)
    return Version("p/q", version, target, manifest)


def remote(place: tuple[str, dict[str, Any]], name: str) -> tuple[Any, str]:
    """The file system, and the path of a file of version 3."""
    fs, root = fsspec.url_to_fs(place[0], **place[1])
    return fs, f"{root.rstrip('/')}/p%2Fq/v000003/{name}"


@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_a_copy_comes_back_byte_for_byte(place: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    version, storage = made(tmp_path), Storage(*place)
    assert storage.put(version) == sum(entry["bytes"] for entry in version.manifest["files"].values())
    fs, path = remote(place, "model.safetensors")
    assert fs.size(path) == 3_500_000
    target = tmp_path / "back" / "v000003"
    storage.get("p/q", 3, version.manifest, target)
    assert problems(target, version.manifest) == []
    assert file_entries(target) == file_entries(version.path)
    assert {path.name for path in target.parent.iterdir()} == {"v000003"}


@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_what_an_interrupted_try_left_is_written_again(place: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    version, storage = made(tmp_path), Storage(*place)

    def dies(point: str) -> None:
        raise KeyboardInterrupt(point)

    with pytest.raises(KeyboardInterrupt, match="mid_upload"):
        storage.put(version, fault=dies)
    with pytest.raises(StorageFault, match="no whole copy of version 3"):
        storage.get("p/q", 3, version.manifest, tmp_path / "back")
    fs, path = remote(place, "config.json")
    fs.pipe_file(path, b"{")  # as half of a file
    assert storage.put(version) > 0
    storage.get("p/q", 3, version.manifest, tmp_path / "back")
    assert problems(tmp_path / "back", version.manifest) == []


@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_a_file_that_is_there_already_is_not_sent_again(place: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    version, storage = made(tmp_path), Storage(*place)
    sent: list[str] = []
    storage.put(version, sent.append)
    storage.put(version, sent.append)
    assert sent == ["mid_upload"] * 2


@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_a_copy_that_was_changed_is_not_taken(place: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    version, storage = made(tmp_path), Storage(*place)
    storage.put(version)
    fs, path = remote(place, "model.safetensors")
    fs.pipe_file(path, b"Weights" * 500_000)
    target = tmp_path / "back"
    target.mkdir()
    (target / "manifest.json").write_text("as it was")
    with pytest.raises(StorageFault, match=r"model\.safetensors is not what the manifest names"):
        storage.get("p/q", 3, version.manifest, target)
    assert [path.name for path in target.iterdir()] == ["manifest.json"]


@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_another_databases_version_is_neither_replaced_nor_fetched(
    place: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    ours, theirs = made(tmp_path), made(tmp_path, content="another", name="other")
    Storage(*place).put(theirs)
    with pytest.raises(StorageFault, match="belongs to another database"):
        Storage(*place).put(ours)
    with pytest.raises(StorageFault, match="another lineage"):
        Storage(*place).get("p/q", 3, ours.manifest, tmp_path / "back")
    Storage(*place).get("p/q", 3, theirs.manifest, tmp_path / "back")


def test_a_storage_that_changes_bytes_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says yes and keeps something else."""
    version, storage = made(tmp_path), Storage(f"file://{tmp_path}/copies", {})
    real = storage._fs.put_file

    def careless(source: str, target: str) -> None:
        real(source, target)
        Path(target).write_bytes(Path(target).read_bytes()[:-1] + b"!")

    monkeypatch.setattr(storage._fs, "put_file", careless)
    with pytest.raises(StorageFault, match="is not what the manifest names"):
        storage.put(version)
    assert not (tmp_path / "copies" / "p%2Fq" / "v000003" / "manifest.json").exists()


def train(learning: Learning, count: int, **more: Any) -> None:
    for _ in range(count):
        learning.add_batch(mixed(learning.seq), send=False)
    learning.send()
    run_learner(learning.config(stop_after=count, **more))


def uploads(learning: Learning) -> list[tuple[Any, ...]]:
    return learning.rows("SELECT version, status, attempts, detail FROM weight_uploads ORDER BY version")


@pytest.mark.stack
@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_the_learner_copies_every_version_and_fetch_brings_them_back(
    learning: Learning, place: tuple[str, dict[str, Any]]
) -> None:
    """Deltas and their bases; what is at the storage may be deleted here, and comes back with its base."""
    url, options = place
    copying = {"upload_url": url, "upload_options": options}
    train(learning, 5, publish="delta", full_every=3, keep_last=2, **copying)
    assert uploads(learning) == [(version, "uploaded", 1, None) for version in range(6)]
    weights = learning.directory / "weights"
    for version in (1, 3, 4):
        prune(version_dir(weights, "p", version), fault=no_fault)
    with learning.engine.begin() as connection:
        storage = Storage(url, options)
        assert fetch(connection, storage, weights, "p", 4) == [3, 4]
        assert fetch(connection, storage, weights, "p", 4) == []
        assert fetch(connection, storage, weights, "p", 1) == [1]
        for version in (1, 3, 4):
            there = stored_version(connection, weights, "p", version)
            assert faults(there, base_version(connection, weights, there)) == []
        with pytest.raises(LookupError, match="no version 9"):
            fetch(connection, storage, weights, "p", 9)


@pytest.mark.stack
def test_a_storage_that_is_away_holds_no_step_up_and_is_tried_again(
    learning: Learning, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on, nothing that has no copy is deleted, and the next learner makes the copies."""
    real: Callable[..., int] = Storage.put

    def away(self: Storage, version: Version, fault: Any = no_fault) -> int:
        raise ConnectionError("nobody answers at bucket.example")

    monkeypatch.setattr(storage_module.Storage, "put", away)
    copying = {"upload_url": f"file://{learning.directory}/copies", "keep_last": 2}
    train(learning, 4, **copying)
    weights = learning.directory / "weights"
    assert all(has_weights(version_dir(weights, "p", version)) for version in range(5))
    ((version, status, attempts, detail),) = uploads(learning)
    assert (version, status, detail) == (0, "failed", "ConnectionError: nobody answers at bucket.example")
    assert attempts >= 1
    assert upload_missing(learning.config(**copying), learning.engine, threading.Event()) == [0, 1, 2, 3, 4]

    monkeypatch.setattr(storage_module.Storage, "put", real)
    train(learning, 1, **copying)
    done = uploads(learning)
    assert [(version, status, detail) for version, status, _, detail in done] == [
        (version, "uploaded", None) for version in range(6)
    ]
    assert done[0][2] == attempts + 2
    train(learning, 1, **copying)
    assert [v for v in range(7) if has_weights(version_dir(weights, "p", v))] == [0, 5, 6]


@pytest.mark.stack
def test_secrets_are_not_shown(learning: Learning) -> None:
    config = learning.config(upload_url="s3://b", upload_options={"key": "K", "secret": "very-secret"})
    assert "very-secret" not in repr(config)
    assert json.dumps(dict(config.upload_options)) == '{"key": "K", "secret": "very-secret"}'
