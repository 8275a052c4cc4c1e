"""How deeply JSON may be nested. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MAX_DEPTH = 100
"""Deeper than any message or tool schema that people send, and far from Python's limit of 1,000 calls: there the parser
still takes what hashing, sanitising or encoding then fails at."""


def nested_deeply(value: Any, levels: int = MAX_DEPTH) -> bool:
    """Whether `value` (JSON-like) has lists or objects in one another more than `levels` times. Never recurses."""
    level = _containers((value,))
    for _ in range(levels):
        level = [inner for outer in level for inner in _containers(outer)]
        if not level:
            return False
    return True


def _containers(outer: Iterable[Any]) -> list[Any]:
    return [inner for inner in (outer.values() if isinstance(outer, dict) else outer) if isinstance(inner, dict | list)]
