"""Full versions, deltas and adapters on their way into a server, which is played here; vLLM itself is in
`test_serving`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sqlalchemy import Connection

from learner.checkpoints import copy_model, version_dir, write_version
from learner.commit import add_version
from learner.config import no_fault
from learner.deltas import DeltaFault, make_delta
from learner.loading import Load, load_version
from learner.manifest import Lineage, manifest_digest
from learner.policy_server import PolicyServer, ServerRefused
from learner.servable import Servable, Shelf
from learner.service import run_learner
from schemas.recipes import recipe_named
from tests.learner.learning import Learning, mixed, tiny_model

pytestmark = pytest.mark.stack

BASE_NAME, ADAPTER_NAME = "policy", "policy-adapter"


class Played(PolicyServer):
    """A server that knows what was loaded into it; `refused`: paths that it cannot load."""

    def __init__(self, model: str) -> None:
        super().__init__("http://played", model, timeout_s=1)
        self.weights: Path | None = None
        self.adapters: dict[str, Path] = {}
        self.calls: list[str] = []
        self.refused: set[Path] = set()
        self.tagged = "default"

    def tag(self) -> str:
        return self.tagged

    def is_paused(self) -> bool:
        return False

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")

    def forget_prefixes(self) -> None:
        self.calls.append("forget")

    def set_tag(self, tag: str) -> None:
        self.calls.append(f"tag {tag}")
        self.tagged = tag

    def reload(self, path: Path) -> None:
        self._load("weights", path)
        self.weights = path

    def load_adapter(self, path: Path) -> None:
        self._load("adapter", path)
        self.adapters[self._model] = path

    def canary(self) -> list[float]:
        """Other numbers for other bytes."""
        parts = [self.weights, self.adapters.get(self._model)]
        data = b"".join(file.read_bytes() for part in parts if part for file in sorted(part.glob("*.safetensors")))
        return [float(hash(data) % 1000)]

    def _models(self) -> list[dict[str, Any]]:
        return [{"id": BASE_NAME, "parent": None}, *({"id": name, "parent": BASE_NAME} for name in self.adapters)]

    def _load(self, what: str, path: Path) -> None:
        self.calls.append(f"{what} {path.name}")
        if path in self.refused:
            raise ServerRefused(f"{path} cannot be loaded")


@pytest.fixture
def connection(learning: Learning) -> Iterator[Connection]:
    with learning.engine.begin() as open_:
        yield open_


class Versions:
    """Versions of a tiny policy, of any kind, and the shelf of one server."""

    def __init__(self, connection: Connection, directory: Path) -> None:
        self.connection, self.weights = connection, directory / "weights"
        self.shelf = Shelf(directory / "serving", self.weights, "p", "http://played")
        self._add(0, lambda target: copy_model(tiny_model(directory / "base"), target))

    def full(self, version: int, by: float) -> None:
        self._add(version, lambda target: self._moved(target, by))

    def delta(self, version: int, base: int, by: float) -> None:
        def fill(target: Path) -> dict[str, Any]:
            whole = target / "whole"
            whole.mkdir()
            self._moved(whole, by)
            result = make_delta(self._dir(base), whole, target)
            for path in whole.iterdir():
                path.unlink()
            whole.rmdir()
            return {"kind": "delta", "base": self._named(base), "result": result}

        self._add(version, fill)

    def adapter(self, version: int, by: float, rows: int = 32) -> None:
        def fill(target: Path) -> dict[str, Any]:
            layer = "base_model.model.model.layers.0.self_attn.q_proj"
            matrices = {
                f"{layer}.lora_A.weight": torch.full((1, 32), by),
                f"{layer}.lora_B.weight": torch.full((rows, 1), by),
            }
            save_file(matrices, target / "adapter_model.safetensors")
            (target / "adapter_config.json").write_text("{}")
            return {"kind": "adapter", "base": self._named(0)}

        self._add(version, fill)

    def get(self, version: int, server: Played) -> Servable:
        found = self.shelf.get(self.connection, version)
        return self.shelf.without_adapter(found) if server.takes_adapters() and found.adapter is None else found

    def load(self, server: Played, version: int, serving: Servable | None) -> Load:
        return load_version(server, self.get(version, server), serving, self.get(0, server))

    def _moved(self, target: Path, by: float) -> None:
        copy_model(self._dir(0), target)
        tensors = load_file(target / "model.safetensors")
        tensors["model.norm.weight"] *= by
        save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})

    def _add(self, version: int, fill: Callable[[Path], Any]) -> None:
        manifest = write_version(self._dir(version), Lineage(policy="p", version=version), fill, fault=no_fault)
        add_version(self.connection, "p", version, str(self._dir(version)), manifest)
        self.manifests = {**getattr(self, "manifests", {}), version: manifest}

    def _named(self, version: int) -> dict[str, Any]:
        return {"version": version, "manifest_sha256": manifest_digest(self.manifests[version])}

    def _dir(self, version: int) -> Path:
        return version_dir(self.weights, "p", version)


@pytest.fixture
def versions(connection: Connection, tmp_path: Path) -> Versions:
    return Versions(connection, tmp_path)


def test_a_delta_is_put_together_and_only_what_is_served_stays(versions: Versions) -> None:
    server = Played(BASE_NAME)
    versions.full(1, 2.0)
    versions.delta(2, 1, 3.0)
    versions.delta(3, 1, 4.0)
    first = versions.load(server, 2, None)
    assert (first.fault, server.tagged) == (None, "2")
    assert first.serving is not None
    versions.shelf.keep_only(first.serving)
    assert server.weights == first.serving.weights.path
    expected = load_file(versions._dir(0) / "model.safetensors")["model.norm.weight"] * 3
    assert torch.equal(load_file(server.weights / "model.safetensors")["model.norm.weight"], expected)
    assert (server.weights / "tokenizer.json").exists()
    second = versions.load(server, 3, first.serving)
    assert (second.fault, second.serving is not None) == (None, True)
    assert second.serving is not None
    versions.shelf.keep_only(second.serving)
    assert not first.serving.weights.path.exists()
    assert second.serving.weights.path.exists()
    third = versions.load(server, 1, second.serving)
    assert (third.fault, server.weights) == (None, versions._dir(1))


def test_a_delta_that_does_not_fit_its_base_is_not_served(versions: Versions) -> None:
    versions.full(1, 2.0)
    versions.delta(2, 1, 3.0)
    path = versions._dir(1) / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(DeltaFault, match="is not what the manifest names"):
        versions.get(2, Played(BASE_NAME))


def test_adapters_replace_each_other_over_weights_that_are_loaded_once(versions: Versions) -> None:
    """The base under the policy's name is the base with an adapter that adds nothing, so the name always answers."""
    server = Played(ADAPTER_NAME)
    for version in (1, 2):
        versions.adapter(version, 0.1 * version)
    serving = None
    for version in range(3):
        load = versions.load(server, version, serving)
        assert load.fault is None
        serving = load.serving
    loads = [call for call in server.calls if call.split()[0] in ("weights", "adapter", "tag")]
    assert loads == [
        "weights v000000",
        "adapter no-adapter",
        "tag 0",
        "adapter v000001",
        "tag 1",
        "adapter v000002",
        "tag 2",
    ]
    assert server.calls.count("forget") == server.calls.count("pause") == server.calls.count("resume") == 3
    versions.full(3, 2.0)
    load = versions.load(server, 3, serving)
    assert (load.fault, server.weights) == (None, versions._dir(3))
    assert server.adapters[ADAPTER_NAME].name == "no-adapter"
    assert versions.load(server, 1, load.serving).fault is None
    assert (server.weights, server.adapters[ADAPTER_NAME]) == (versions._dir(0), versions._dir(1))


def test_an_adapter_that_adds_nothing_is_one(versions: Versions) -> None:
    found = versions.get(0, Played(ADAPTER_NAME))
    assert found.adapter is not None
    tensors = load_file(found.adapter / "adapter_model.safetensors")
    (a, b) = (tensors[name] for name in sorted(tensors))
    assert (a.shape, b.shape) == ((1, 64), (32, 1))  # of the first layer by name, down_proj
    assert not (b @ a).any()


@pytest.mark.parametrize(
    ("server", "harm", "says"),
    [
        (BASE_NAME, None, "that of the server's base model: choose another name"),
        (ADAPTER_NAME, "shape", "is for other weights than"),
        (ADAPTER_NAME, "bytes", "adapter_model.safetensors was changed"),
        (ADAPTER_NAME, "refused", "v000001 cannot be loaded; version 0 is served"),
    ],
)
def test_an_adapter_that_cannot_be_leaves_what_was_served(
    versions: Versions, server: str, harm: str | None, says: str
) -> None:
    played = Played(server)
    versions.adapter(1, 0.1, rows=33 if harm == "shape" else 32)
    before = versions.load(played, 0, None)
    assert before.fault is None
    if harm == "bytes":
        path = versions._dir(1) / "adapter_model.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    elif harm == "refused":
        played.refused.add(versions._dir(1))
    load = versions.load(played, 1, before.serving)
    assert says in str(load.fault)
    assert load.serving == before.serving
    assert played.tagged == "0"
    assert played.adapters.get(ADAPTER_NAME) == (before.serving and before.serving.adapter)


def test_what_a_learner_publishes_is_what_a_server_takes(learning: Learning, tmp_path: Path) -> None:
    """Adapters as the learner writes them, over the base and over another run's weights."""
    lora = {"judge": {"votes": 0}, "optimizer": {"lr": 1e-2}, "lora": {"rank": 2}}
    learning.add_batch(mixed(0))
    run_learner(learning.config(stop_after=1))
    learning.start_run(f"{learning.run}-b", recipe_named("binary-rl", lora))
    learning.add_batch(mixed(1))
    run_learner(learning.config(stop_after=1, publish="adapter"))
    server = Played(ADAPTER_NAME)
    shelf = Shelf(tmp_path / "serving", learning.directory / "weights", "p", "http://played")
    with learning.engine.begin() as connection:
        base = shelf.without_adapter(shelf.get(connection, 0))
        load = load_version(server, shelf.get(connection, 2), None, base)
    assert load.fault is None
    assert server.weights == version_dir(learning.directory / "weights", "p", 1)
    assert server.adapters[ADAPTER_NAME] == version_dir(learning.directory / "weights", "p", 2)
