"""How deeply JSON may be nested. Pure."""

from __future__ import annotations

from typing import Any

MAX_DEPTH = 100
"""Deeper than any message or tool schema that people send, and far from Python's limit of 1,000 calls: there the parser
still takes what hashing, sanitising or encoding then fails at."""
_CONTAINERS = (dict, list)
"""A tuple: `isinstance` takes a union of types twice as long, and this is asked of every value of every message."""


def nested_deeply(value: Any, levels: int = MAX_DEPTH) -> bool:
    """Whether `value` (JSON-like) has lists or objects in one another more than `levels` times. Never recurses."""
    level: list[Any] = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(levels):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, _CONTAINERS)
        ]
        if not level:
            return False
    return True
