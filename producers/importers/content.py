"""What a message says: its text out of the shapes in which logs keep it, and what of it a person wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from producers.importers.base import Unreadable
from producers.importers.json_scan import json_type
from schemas.digests import sha256_hex

_DIGEST = 16
"""Hex digits that name an image: enough that two of one session never share a name."""


def content_text(content: Any, what: str) -> str:
    """The text of a message's content: a string, null, or a list of parts.

    Text parts are joined by a line break. An image is named, by its own name where it has one, else by the SHA-256
    of its data: an event with every screenshot in every later request would be as large as the square of the log.

    Raises:
        Unreadable: it has none of these shapes; `what` names it.
    """
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list):
        return "\n".join(_part(part, what) for part in content)
    raise Unreadable(f"{what} is a JSON {json_type(content)}, not text or a list of parts")


def image_name(image: Any) -> str:
    """`[image NAME]` for an image given by name, URL, data URL or base64, in the shapes of several APIs."""
    found = _source(image)
    if found is None:
        return "[image]"
    media, data = found
    if data.startswith("data:"):
        head, _, data = data.partition(",")
        media = head.removeprefix("data:").partition(";")[0]
    elif media is None:
        return f"[image {data}]"
    named = f"{media} " if media else ""
    return f"[image {named}sha256:{sha256_hex(data.encode('utf-8', 'surrogatepass'))[:_DIGEST]}]"


def arguments_of(given: Any) -> str:
    """A tool call's arguments as the string that the policy wrote. A log that keeps them parsed gets them printed
    once; one that kept the string keeps it as it is, also where that is JSON inside a string."""
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def spoken(text: str, tags: Iterable[str]) -> str:
    """`text` without the machine's blocks `<tag ...>...</tag>` at its beginning and end; what a person quotes in the
    middle stays."""
    names = tuple(tags)
    leading = re.compile(rf"\s*<({'|'.join(map(re.escape, names))})(?:\s[^>]*)?>.*?</\1>", re.DOTALL)
    start = 0
    while (found := leading.match(text, start)) is not None:
        start = found.end()
    text = text[start:].strip()
    end = len(text)
    while (tag := next((name for name in names if text.endswith(f"</{name}>", 0, end)), None)) is not None:
        opening = text.rfind(f"<{tag}>", 0, end)
        opening = max(opening, text.rfind(f"<{tag} ", max(opening, 0), end))
        if opening < 0:
            break
        end = opening
        while end and text[end - 1].isspace():
            end -= 1
    return text[:end]


def text_field(row: dict[str, Any], name: str) -> str | None:
    """The field if it is text that is not empty."""
    value = row.get(name)
    return value if isinstance(value, str) and value else None


def _part(part: Any, what: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise Unreadable(f"{what} has a part that is a JSON {json_type(part)}")
    text = part.get("text")
    if isinstance(text, str):
        return text
    kind = part.get("type")
    if not isinstance(kind, str):
        raise Unreadable(f"{what} has a part with neither `text` nor `type`")
    return image_name(part) if "image" in kind else f"[{kind}]"


def _source(image: Any) -> tuple[str | None, str] | None:
    """Media type (None: it is a name or URL) and data of an image part."""
    if isinstance(image, str):
        return None, image
    if not isinstance(image, dict):
        return None
    data = text_field(image, "data")
    if data is not None:
        return text_field(image, "media_type") or text_field(image, "mimeType") or "", data
    for name in ("source", "image_url", "url", "image", "file_path", "path", "name", "file_id"):
        if image.get(name):
            return _source(image[name])
    return None
