"""Text that Postgres or UTF-8 refuses, made storable without losing what it was.

Postgres refuses NUL in text and JSONB (SQLSTATE 22021, 22P05), UTF-8 refuses lone surrogates. Each such character
becomes U+FFFD, one for one, and the original is kept beside it as ASCII JSON in base64.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import msgspec

from schemas.digests import clean_json

_REFUSED = re.compile("[\x00\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


def sanitise_text(text: str) -> str:
    """`text` with each NUL and each lone surrogate replaced by U+FFFD; the length stays the same."""
    return text if _storable(text) else _REFUSED.sub(_REPLACEMENT, text)


def sanitise(value: Any) -> tuple[Any, bool]:
    """`value` (JSON-like) with every string and key sanitised, and whether anything changed."""
    if isinstance(value, dict | list) and _clean(value):
        return value, False
    return _replaced(value)


def _clean(value: Any) -> bool:
    """Whether it is JSON with nothing to replace, found by writing it: in C, so much faster than a walk."""
    try:
        return clean_json(value) is not None
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return False


def _replaced(value: Any) -> tuple[Any, bool]:
    if isinstance(value, str):
        clean = sanitise_text(value)
        return clean, clean is not value
    if isinstance(value, dict):
        changed = False
        out: dict[str, Any] = {}
        for key, item in value.items():
            clean_key, key_changed = _replaced(key)
            clean_item, item_changed = _replaced(item)
            changed = changed or key_changed or item_changed
            out[clean_key] = clean_item
        return out, changed
    if isinstance(value, (list, tuple)):
        pairs = [_replaced(item) for item in value]
        return [item for item, _ in pairs], any(changed for _, changed in pairs)
    return value, False


def _storable(text: str) -> bool:
    """Whether nothing is to be replaced. Ten times faster than the pattern: all of it is done by searches in C."""
    if "\x00" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def raw_of(value: Any) -> str:
    """Base64 of the ASCII JSON of `value`: NULs and surrogates survive as escapes."""
    return base64.b64encode(json.dumps(value, ensure_ascii=True).encode("ascii")).decode("ascii")


def from_raw(raw: str) -> Any:
    """What `raw_of` was given."""
    return json.loads(base64.b64decode(raw))
