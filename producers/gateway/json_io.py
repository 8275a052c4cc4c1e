"""JSON as it travels: by orjson where it can, by the standard library where orjson refuses what servers and clients say
all the same (lone surrogates, NaN)."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

_SURROGATE = re.compile("[\ud800-\udfff]")


def loads(data: bytes | str) -> Any:
    """What `data` says.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested too deeply.
    """
    try:
        return orjson.loads(data)
    except ValueError:
        return json.loads(data)


def dumps(value: Any) -> bytes:
    """JSON for a client: a lone surrogate stays one, as an escape."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value).encode("ascii")


def dumps_clean(value: Any) -> bytes:
    """JSON in UTF-8. A lone surrogate is none, and no tokenizer takes it; it becomes U+FFFD, as in the record of the
    turn."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return _SURROGATE.sub("\ufffd", json.dumps(value, ensure_ascii=False, separators=(",", ":"))).encode("utf-8")
