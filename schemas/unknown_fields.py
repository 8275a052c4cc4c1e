"""Fields that a reader does not know: taken out when an event is read, put back when it is written. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def difference(plain: Any, known: Any) -> Any:
    """What `plain` has and `known` lacks, as nested dicts; list items are compared by position."""
    if isinstance(plain, dict) and isinstance(known, dict):
        out = {}
        for name, item in plain.items():
            if name not in known:
                out[name] = item
            # What is equal has the same names: compared in C, since most of an event is equal.
            elif item != known[name] and (rest := difference(item, known[name])):
                out[name] = rest
        return out
    if isinstance(plain, list) and isinstance(known, list):
        rests = {str(i): r for i, (a, b) in enumerate(zip(plain, known, strict=False)) if (r := difference(a, b))}
        return rests
    return {}


def merge(plain: Any, unknown: Mapping[str, Any]) -> Any:
    """`plain` with what `difference` found put back; what it has itself stays."""
    if isinstance(plain, list):
        return [merge(item, unknown[str(i)]) if str(i) in unknown else item for i, item in enumerate(plain)]
    out = dict(plain)
    for name, item in unknown.items():
        if name in out and isinstance(item, dict) and isinstance(out[name], (dict, list)):
            out[name] = merge(out[name], item)
        else:
            out.setdefault(name, item)
    return out
