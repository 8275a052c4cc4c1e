"""A version as a server takes it: a directory with all weights, and over them an adapter where it is one.

Deltas are put together in a directory of the server's own, which only its follower writes; only what is served stays
there.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from safetensors.numpy import save_file
from sqlalchemy import Connection

from learner.checkpoints import beside, policy_dir, put_in_place, sync_all, version_dir
from learner.errors import LearnerStopped
from learner.manifest import problems, weights_digest
from learner.stored import Version, assemble, base_version, stored_version
from learner.tensors import architecture_difference, tensor_shapes
from schemas.digests import sha256_hex

_NO_ADAPTER = "no-adapter"
_CONFIG, _MATRICES, _PREFIX = "adapter_config.json", "adapter_model.safetensors", "base_model.model."
"""peft's names: its two files, and what it puts before a layer's name."""


@dataclass(frozen=True)
class Servable:
    """`version` names it; `weights` is the full version that is loaded, `adapter` the directory of what goes over
    it."""

    version: Version
    weights: Version
    adapter: Path | None = None

    @property
    def tag(self) -> str:
        """What the server stamps its tokens with."""
        return self.version.tag

    @property
    def digest(self) -> str:
        """Equal where two hold the same weights and the same adapter."""
        return sha256_hex((weights_digest(self.weights.manifest) + weights_digest(self.version.manifest)).encode())

    def faults(self, base: Servable, loaded: Version | None) -> list[str]:
        """What is wrong with its files, or why a server of `base` could not load it; empty where nothing is. `loaded`:
        weights that the server holds already and that need no second look."""
        found: list[str] = []
        if loaded is None or loaded.path != self.weights.path:
            found += problems(self.weights.path, self.weights.manifest)
            # vLLM loads a version that lacks tensors without a word; one with a wrong shape stops its engine for good.
            if not found and (other := architecture_difference(self.weights.path, base.weights.path)):
                found.append(other)
        if not found and self.version.kind == "adapter":
            found += problems(self.version.path, self.version.manifest)
            if not found and (strange := _adapter_difference(self.version.path, self.weights.path)):
                found.append(strange)
        return found


class Shelf:
    """Where what one server loads lies ready.

    Args:
        directory: of all servers of this machine; the server must see it.
        weights_dir: where versions lie.
        policy: whose versions.
        server: address of the server.
    """

    def __init__(self, directory: Path, weights_dir: Path, policy: str, server: str) -> None:
        self._weights_dir, self._policy = weights_dir, policy
        self._own = policy_dir(directory, policy) / sha256_hex(server.encode())[:12]

    def get(self, connection: Connection, version: int) -> Servable:
        """A version, put together where it is a delta.

        Raises:
            LookupError: there is no such version.
            DeltaFault: something else comes out than its manifest names.
            OSError: a file is missing, or the disk is full.
        """
        found = stored_version(connection, self._weights_dir, self._policy, version)
        base = base_version(connection, self._weights_dir, found)
        if base is None:
            return Servable(found, found)
        if found.kind == "adapter":
            return Servable(found, base, found.path)
        whole = assemble(found, base, self._own / version_dir(Path(), self._policy, version).name)
        return Servable(whole, whole)

    def without_adapter(self, full: Servable) -> Servable:
        """A full version for a server that knows the policy as an adapter: with one that adds zero.

        Raises:
            OSError: the disk is full or not writable.
        """
        target = self._own / _NO_ADAPTER
        if not target.is_dir():
            with beside(target) as temporary:
                _write_zero_adapter(full.weights.path, temporary)
                sync_all(temporary)
                put_in_place(temporary, target)
        return Servable(full.version, full.weights, target)

    def keep_only(self, served: Servable) -> None:
        """Delete what was put together for earlier versions."""
        for directory in self._own.glob("v*"):
            if directory != served.weights.path:
                shutil.rmtree(directory, ignore_errors=True)


def _write_zero_adapter(base: Path, target: Path) -> None:
    """An adapter of rank 1 of one layer, whose product is zero."""
    names = (name for name in sorted(tensor_shapes(base)) if name.endswith("_proj.weight"))
    name = next(names, None)
    if name is None:
        raise LearnerStopped(f"{base} has no layer that ends in _proj, so no adapter that adds nothing can be made")
    rows, columns = tensor_shapes(base)[name]
    layer = name.removesuffix(".weight")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 1,
        "lora_alpha": 1,
        "bias": "none",
        "target_modules": [layer.rpartition(".")[2]],
    }
    matrices = {
        f"{_PREFIX}{layer}.lora_A.weight": np.zeros((1, columns), np.float32),
        f"{_PREFIX}{layer}.lora_B.weight": np.zeros((rows, 1), np.float32),
    }
    (target / _CONFIG).write_bytes(msgspec.json.encode(config))
    save_file(matrices, target / _MATRICES)


def _adapter_difference(adapter: Path, base: Path) -> str | None:
    """Why an adapter does not fit the weights in `base`, in words; None where it does."""
    layers = tensor_shapes(base)
    for name, shape in sorted(tensor_shapes(adapter).items()):
        layer, _, matrix = name.removeprefix(_PREFIX).rpartition(".lora_")
        whole = layers.get(f"{layer}.weight")
        fits = whole is not None and (shape[1] == whole[1] if matrix.startswith("A") else shape[0] == whole[0])
        if not fits:
            return f"{adapter} is for other weights than {base}: {name} is {shape}, the layer {whole}"
    return None
