"""The content of a message as one text: text parts, and what stands for a picture or a file by its name."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from producers.importers.base import Unreadable
from producers.importers.json_scan import json_type

TEXT_TYPES = frozenset({"text", "input_text", "output_text", "refusal"})
"""Types of a part that is nothing but text."""
_LONGEST_NAME = 200
"""Characters of a name that are shown. A longer one is data, not a name."""


def shown_text(content: Any, what: str = "`content`") -> str:
    """A message's content as text: parts joined by newlines, a picture as `[image: NAME]`.

    Raises:
        Unreadable: it is neither text nor a list of parts; `what` names it.
    """
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content:
        return "\n".join(_part(part, what) for part in content)
    raise Unreadable(f"{what} is a JSON {json_type(content)}, neither text nor a list of parts")


def image_name(url: Any) -> str:
    """The name of a picture: the last part of its path or address; for data within the text, their type."""
    if isinstance(url, dict):
        url = url.get("url") or url.get("path") or url.get("file_id")
    if not isinstance(url, str) or not url:
        return "unnamed"
    if url.startswith("data:"):
        return url[len("data:") :].split(";", 1)[0].split(",", 1)[0][:_LONGEST_NAME] or "data"
    try:
        path = urlsplit(url).path
    except ValueError:
        path = url
    return (path.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] or url)[:_LONGEST_NAME]


def image_part(name: str) -> dict[str, Any]:
    """A message part that stands for a picture which is known by its name only."""
    return {"type": "image_url", "image_url": {"url": name}}


def _part(part: Any, what: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise Unreadable(f"a part of {what} is a JSON {json_type(part)}, not an object")
    kind = part.get("type")
    kind = kind if isinstance(kind, str) else None
    for name in ("text", "content", "refusal"):
        if isinstance(part.get(name), str) and (kind in TEXT_TYPES or kind is None or name == "text"):
            return str(part[name])
    if kind in ("image_url", "input_image", "image"):
        return f"[image: {image_name(part.get('image_url') or part.get('url') or part.get('source'))}]"
    if isinstance(kind, str):
        name = part.get("filename") or part.get("file_id") or part.get("name") or "unnamed"
        return f"[{kind[:_LONGEST_NAME]}: {str(name)[:_LONGEST_NAME]}]"
    raise Unreadable(f"a part of {what} has neither text nor a type")
