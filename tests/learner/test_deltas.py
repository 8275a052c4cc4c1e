"""A delta and its base make the version again byte for byte, whatever the tensors are, and every harm is noticed."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from learner.deltas import DeltaFault, _changed, _difference, apply_delta, make_delta, stored_bytes
from learner.manifest import file_entries

Tensors = dict[str, torch.Tensor]


def directory(path: Path, tensors: Tensors, **files: str) -> Path:
    path.mkdir()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    for name, text in files.items():
        (path / f"{name}.json").write_text(text)
    return path


def round_trip(tmp_path: Path, base: Path, new: Path) -> Path:
    """The directory of the delta, after its result was compared with `new`."""
    delta, out = tmp_path / "delta", tmp_path / "out"
    delta.mkdir()
    out.mkdir()
    result = make_delta(base, new, delta)
    apply_delta(base, delta, result, out)
    apply_delta(base, delta, result, None)
    assert result == file_entries(new) == file_entries(out)
    for path in new.iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes()
    return delta


def weights(dtype: torch.dtype = torch.bfloat16) -> Tensors:
    generator = torch.Generator().manual_seed(0)
    return {
        "a": (torch.randn(300, 1000, generator=generator) * 0.03).to(dtype),
        "b": torch.randn(7, generator=generator).to(dtype),
        "scalar": torch.tensor(1.5, dtype=dtype),
    }


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_small_step_is_a_small_delta_of_the_same_bytes(tmp_path: Path, dtype: torch.dtype) -> None:
    old = weights(dtype)
    new = {name: tensor.clone() for name, tensor in old.items()}
    new["a"][::10, ::10] += 0.01
    new["b"][3] = -new["b"][3]
    delta = round_trip(tmp_path, directory(tmp_path / "base", old, config="{}"), directory(tmp_path / "new", new))
    assert [path.name for path in delta.iterdir()] == ["model.safetensors.delta"]
    assert stored_bytes(delta) < (tmp_path / "new" / "model.safetensors").stat().st_size / 20


def test_every_bit_pattern_comes_back(tmp_path: Path) -> None:
    """All 65,536 values of 16 bits, NaNs and both zeros among them, out of all of them in another order."""
    old = np.arange(65536, dtype=np.uint16)
    new = np.random.default_rng(0).permutation(old)

    def patterns(values: np.ndarray) -> Tensors:
        return {"w": torch.from_numpy(values.view(np.int16).copy()).view(torch.bfloat16)}

    round_trip(tmp_path, directory(tmp_path / "base", patterns(old)), directory(tmp_path / "new", patterns(new)))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["u1", "u2", "u4", "u8"]), st.lists(st.tuples(st.integers(0, 700), st.integers(1, 255))))
def test_any_gaps_and_any_differences_come_back(kind: str, changes: list[tuple[int, int]]) -> None:
    """Gaps around every multiple of 255, at the first and the last element too."""
    places = np.cumsum([gap + 1 for gap, _ in changes], dtype=np.int64) - 1
    old = np.full(int(places[-1]) + 1 if changes else 5, 250, dtype=f"<{kind}")
    new = old.copy()
    new[places] += np.array([by for _, by in changes], dtype=old.dtype)  # wraps round where it is one byte
    count, parts = _difference(old, new)
    assert count == int((old != new).sum())
    assert np.array_equal(_changed(old, count, parts), new)


def test_tensors_that_the_base_has_not_are_stored_whole(tmp_path: Path) -> None:
    old = weights()
    new = {"a": old["a"], "b": torch.ones(8, dtype=torch.bfloat16), "c": torch.arange(5), "empty": torch.zeros(0, 3)}
    round_trip(tmp_path, directory(tmp_path / "base", old), directory(tmp_path / "new", new))


def test_tensors_may_lie_in_other_files(tmp_path: Path) -> None:
    """The base is one file, the new version two with an index."""
    old = weights()
    base = directory(tmp_path / "base", old)
    new = tmp_path / "new"
    new.mkdir()
    save_file({"a": old["a"] * 2}, new / "model-00001-of-00002.safetensors")
    save_file({"b": old["b"], "scalar": old["scalar"]}, new / "model-00002-of-00002.safetensors")
    (new / "model.safetensors.index.json").write_text("{}")
    round_trip(tmp_path, base, new)


def test_equal_files_are_named_and_not_stored(tmp_path: Path) -> None:
    old = weights()
    base = directory(tmp_path / "base", old, tokenizer="the same", config="old")
    new = directory(tmp_path / "new", old, tokenizer="the same", config="new")
    delta = round_trip(tmp_path, base, new)
    assert [path.name for path in delta.iterdir()] == ["config.json"]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


HARMS: list[tuple[Callable[[Path, Path], object], str]] = [
    (lambda base, delta: flip(base / "model.safetensors", -1), "is not what the manifest names"),
    (lambda base, delta: flip(delta / "model.safetensors.delta", -1), "damaged|is not what the manifest names"),
    (lambda base, delta: flip(delta / "model.safetensors.delta", 0), "is no delta of this format"),
    (lambda base, delta: (delta / "model.safetensors.delta").write_bytes(b"HSDELTA1"), "is damaged"),
    (lambda base, delta: (delta / "config.json").unlink(), "config.json is neither in"),
    (lambda base, delta: (base / "tokenizer.json").unlink(), "tokenizer.json is neither in"),
    (lambda base, delta: (base / "model.safetensors").unlink(), "which its base does not have"),
    (lambda base, delta: (base / "model.safetensors").write_bytes(b"short"), "is no safetensors file"),
    (lambda base, delta: (base / "tokenizer.json").write_text("other"), "is not what the manifest names"),
]


@pytest.mark.parametrize(("harm", "says"), HARMS)
def test_every_harm_is_noticed(tmp_path: Path, harm: Callable[[Path, Path], object], says: str) -> None:
    old = weights()
    base = directory(tmp_path / "base", old, tokenizer="the same")
    new = directory(tmp_path / "new", {name: t + 1 for name, t in old.items()}, tokenizer="the same", config="its own")
    delta = tmp_path / "delta"
    delta.mkdir()
    result = make_delta(base, new, delta)
    harm(base, delta)
    with pytest.raises(DeltaFault, match=says):
        apply_delta(base, delta, result, None)


def test_a_header_that_ends_early_is_told(tmp_path: Path) -> None:
    base = directory(tmp_path / "base", weights())
    new = tmp_path / "new"
    new.mkdir()
    header = json.dumps({"w": {"dtype": "BF16", "shape": [1]}}).encode()
    (new / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(DeltaFault, match=r"model\.safetensors is no safetensors file"):
        make_delta(base, new, tmp_path)


def test_the_result_is_what_a_library_reads(tmp_path: Path) -> None:
    old = weights()
    new = {name: tensor * 1.01 for name, tensor in old.items()}
    round_trip(tmp_path, directory(tmp_path / "base", old), directory(tmp_path / "new", new))
    read = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(read[name], tensor) for name, tensor in new.items())
