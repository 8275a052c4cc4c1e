"""One HTTP exchange of a HAR file (HTTP Archive 1.2): what was asked for and what came back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

from producers.importers.base import Unreadable
from producers.importers.json_scan import json_type

_PAGE_TYPES = frozenset({"text/html", "application/xhtml+xml"})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True)
class Exchange:
    """One entry of `log.entries`, with the line on which it starts."""

    entry: dict[str, Any]
    line: int
    method: str
    url: str
    status: int
    mime: str

    @property
    def marked(self) -> bool | None:
        """Whether the recorder said that this asks for a document to show; None where it did not say what it is."""
        kind = self.entry.get("_resourceType")
        if isinstance(kind, str):
            return kind == "document"
        destination = _header(self.entry.get("request"), "sec-fetch-dest")
        return None if destination is None else destination == "document"

    def is_navigation(self, marked: bool) -> bool:
        """Whether the browser was sent here. `marked`: the recorder of this file marks navigations."""
        if marked:
            return self.marked is True
        page = self.mime in _PAGE_TYPES or self.status in _REDIRECTS
        return page and not self._is_file

    @property
    def is_content(self) -> bool:
        """Whether this brings what a page shows, rather than a part of its program: JSON that is no file."""
        return (self.mime == "application/json" or self.mime.endswith("+json")) and not self._is_file

    @property
    def redirect(self) -> str | None:
        """The address that the answer sends on to; None where it does not."""
        if self.status not in _REDIRECTS:
            return None
        response = self.entry.get("response")
        to = response.get("redirectURL") if isinstance(response, dict) else None
        to = to if isinstance(to, str) and to else _header(response, "location")
        try:
            return urljoin(self.url, to) if to else None
        except ValueError:
            return None

    @property
    def arguments(self) -> str:
        """What was asked for, as the JSON arguments of a call: method, address, posted text."""
        request = self.entry["request"]
        asked = {"method": self.method, "url": self.url}
        posted = request.get("postData")
        if isinstance(posted, dict) and isinstance(posted.get("text"), str):
            asked["body"] = posted["text"]
        return json.dumps(asked, ensure_ascii=False, separators=(",", ":"))

    @property
    def started_at(self) -> str | None:
        """By the browser's clock."""
        at = self.entry.get("startedDateTime")
        return at if isinstance(at, str) else None

    @property
    def summary(self) -> str:
        """What came back in a line: method, address, status and type."""
        return f"{self.method} {self.url} -> {self.status} {self.mime}".rstrip()

    def shown(self) -> str:
        """What came back, as text: the summary, then the content or the name of its file."""
        content = self.entry["response"].get("content")
        content = content if isinstance(content, dict) else {}
        text = content.get("text")
        if isinstance(text, str) and content.get("encoding") is None:
            return f"{self.summary}\n{text}"
        name = content.get("_file")
        return f"{self.summary}\n[file: {name}]" if isinstance(name, str) else self.summary

    @property
    def _is_file(self) -> bool:
        try:
            return "." in urlsplit(self.url).path.rsplit("/", 1)[-1]
        except ValueError:
            return False


def exchange_of(entry: Any, line: int) -> Exchange:
    """Read one entry.

    Raises:
        Unreadable: it has no request with an address, or no response.
    """
    if not isinstance(entry, dict):
        raise Unreadable(f"is a JSON {json_type(entry)}, not an object")
    request, response = entry.get("request"), entry.get("response")
    if not isinstance(request, dict) or not isinstance(response, dict):
        raise Unreadable("has not both an object `request` and an object `response`")
    method, url, status = request.get("method"), request.get("url"), response.get("status")
    if not isinstance(method, str) or not isinstance(url, str) or not url:
        raise Unreadable("the request has no `method` or no `url`")
    if isinstance(status, bool) or not isinstance(status, int):
        raise Unreadable(f"the response's `status` is a JSON {json_type(status)}, not a whole number")
    content = response.get("content")
    mime = content.get("mimeType") if isinstance(content, dict) else None
    mime = mime.split(";", 1)[0].strip().lower() if isinstance(mime, str) else ""
    return Exchange(entry, line, method, url, status, mime)


def _header(message: Any, name: str) -> str | None:
    headers = message.get("headers") if isinstance(message, dict) else None
    for header in headers if isinstance(headers, list) else []:
        if isinstance(header, dict) and isinstance(key := header.get("name"), str) and key.lower() == name:
            value = header.get("value")
            return value if isinstance(value, str) else None
    return None
