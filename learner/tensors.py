"""The names and shapes of a version's tensors, read from the headers of its files without loading a weight.

A safetensors file begins with 8 bytes, the little-endian length of a JSON object that follows: name -> dtype, shape and
place (huggingface/safetensors, "Format").
"""

from __future__ import annotations

import struct
from pathlib import Path

import msgspec

from learner.manifest import WEIGHT_SUFFIX

_SHOWN = 3


def tensor_shapes(directory: Path) -> dict[str, list[int]]:
    """Shape of every tensor in the weight files of `directory`."""
    shapes: dict[str, list[int]] = {}
    for path in sorted(directory.glob(f"*{WEIGHT_SUFFIX}")):
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = msgspec.json.decode(file.read(length))
        shapes |= {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
    return shapes


def architecture_difference(directory: Path, base: Path) -> str | None:
    """What a server of `base` could not load of the version in `directory`, in words; None where all fits.

    A head that is tied to the embeddings may be left out.
    """
    own, expected = tensor_shapes(directory), tensor_shapes(base)
    if own.keys() == expected.keys() and own == expected:
        return None
    config = msgspec.json.decode((base / "config.json").read_bytes())
    tied = {"lm_head.weight"} if config.get("tie_word_embeddings") else set()
    wrong = [f"{name} is missing" for name in sorted(expected.keys() - own.keys() - tied)]
    wrong += [f"{name} is not in version 0" for name in sorted(own.keys() - expected.keys() - tied)]
    wrong += [
        f"{name} is {shape}, not {expected[name]}" for name, shape in own.items() if expected.get(name, shape) != shape
    ]
    if not wrong:
        return None
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    return f"{directory} is of another architecture than version 0: {', '.join(wrong[:_SHOWN])}{more}"
