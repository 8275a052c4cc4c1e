"""Golden numbers of peers' own functions (../shared/reference), and how close is equal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

REFERENCE = Path(__file__).resolve().parents[3] / "shared" / "reference"
needs_reference = pytest.mark.skipif(not REFERENCE.is_dir(), reason=f"the golden numbers are not here ({REFERENCE})")


@cache
def vectors(name: str) -> dict[str, Any]:
    """One file of golden numbers."""
    return dict(json.loads((REFERENCE / f"{name}.json").read_text()))


def inputs(name: str, key: str) -> dict[str, Any]:
    """Inputs that several cases of a file share."""
    return dict(vectors(name)["shared_inputs"][key])


def case(name: str, title: str) -> dict[str, Any]:
    """The outputs of one case, with its inputs under `inputs`."""
    (found,) = [one for one in vectors(name)["cases"] if one["name"] == title]
    return {**found["outputs"], "inputs": found["inputs"]}


class Parity:
    """The cases of one file, and which of them have a test: a peer's case that ours differs from is tested too, so
    none may be left out unseen."""

    def __init__(self, name: str, *, elsewhere: Iterable[str] = ()) -> None:
        self.name = name
        self.titles = set(elsewhere)

    def __call__(self, *titles: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Run a test for each of `titles`, given as its argument `title`."""
        self.titles.update(titles)

        def decorate(test: Callable[..., None]) -> Callable[..., None]:
            return needs_reference(pytest.mark.parametrize("title", titles)(test))

        return decorate

    def case(self, title: str) -> dict[str, Any]:
        """As `case`, of this file."""
        return case(self.name, title)

    def inputs(self, key: str) -> dict[str, Any]:
        """As `inputs`, of this file."""
        return inputs(self.name, key)

    def check_complete(self) -> None:
        """Every case of the file has a test, and every test a case."""
        assert self.titles == {one["name"] for one in vectors(self.name)["cases"]}


def matrix(values: Any) -> Tensor:
    """float64 tensor of nested lists in which non-finite numbers are strings."""
    return torch.tensor(_numbers(values), dtype=torch.float64)


def flat(ragged: list[list[float]]) -> Tensor:
    """Rows end to end, float64 [N]."""
    return matrix(list(chain.from_iterable(ragged)))


def owners(ragged: list[list[float]]) -> Tensor:
    """The row that each of `flat`'s entries came from, int64 [N]."""
    return torch.cat([torch.full((len(row),), place) for place, row in enumerate(ragged)])


def same(actual: Tensor | float, expected: Any, *, rtol: float = 1e-9, atol: float = 1e-10) -> None:
    """Equal within the tolerances of float64."""
    torch.testing.assert_close(
        torch.as_tensor(actual, dtype=torch.float64), matrix(expected), rtol=rtol, atol=atol, equal_nan=True
    )


def _numbers(values: Any) -> Any:
    return [_numbers(value) for value in values] if isinstance(values, list) else float(values)
