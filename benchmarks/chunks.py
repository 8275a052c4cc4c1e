"""Many things in lists of a size that one request or transaction takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

_SIZE = 500


def chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """`items` in order, 500 at a time."""
    source = iter(items)
    while chunk := list(islice(source, _SIZE)):
        yield chunk
