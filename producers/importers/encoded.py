"""JSON within strings: what loggers encoded once more than the model or the tool did."""

from __future__ import annotations

import json
from typing import Any

_DEPTH = 3
"""Layers of encoding that are taken off: exporters that pass a trace on have been seen to add two."""


def decoded(value: Any) -> Any:
    """`value`, or where it is a string that holds a JSON list or object (also as a string in a string), that.

    Any other text stays as it is, also "null", "7" and a quoted word: it may be what was said.
    """
    found = value
    for _ in range(_DEPTH):
        if not isinstance(found, str) or found.lstrip()[:1] not in ("[", "{", '"'):
            break
        try:
            found = json.loads(found, strict=False)
        except (ValueError, RecursionError):
            break
    return found if isinstance(found, (dict, list)) else value


def raw_arguments(arguments: Any) -> str:
    """A tool call's arguments as the one string that the model wrote, as far as the log still shows it.

    A string is that string, without the quotes that a second encoding put around an object. An object was parsed by
    whoever logged it: it is printed again without spaces, so its spacing is ours. None, a call without any: {}.
    """
    if isinstance(arguments, str):
        inner = arguments
        while inner.lstrip().startswith('"'):
            try:
                once_less = json.loads(inner, strict=False)
            except (ValueError, RecursionError):
                break
            if not isinstance(once_less, str) or once_less.lstrip()[:1] not in ("{", '"'):
                break
            inner = once_less
        return inner if inner.lstrip().startswith("{") else arguments
    if arguments is None:
        return "{}"
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
