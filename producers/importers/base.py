"""What every importer shares: the contract, the row that was refused, and one session on its way to events.

An importer is a pure reader: it reads its file and nothing else, no clock, no network, no settings. The same file,
under whatever name and in whatever directory, gives the same ids, because they are made of the file's content.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence, ValuesView
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from producers.importers.detect import Head
from producers.importers.draft import SessionDraft
from schemas.depth import nested_deeply
from schemas.digests import canonical_json, content_id, sha256_hex
from schemas.envelope import Event
from schemas.text import sanitise

__all__ = [
    "UNKNOWN_POLICY",
    "Importer",
    "RefusedRow",
    "Row",
    "SessionDraft",
    "StorableOnce",
    "Unreadable",
    "check_storable",
    "session_id_of",
    "text_of",
]

UNKNOWN_POLICY = "unknown"
"""The policy's name where the file does not say which model answered."""


@dataclass(frozen=True)
class RefusedRow:
    """One row that did not go in: where it stands (file name, 1-based line), why, and how it begins."""

    file: str
    line: int
    reason: str
    excerpt: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


Row = Event | RefusedRow


class Unreadable(ValueError):
    """A row that an importer cannot read; the message is the reason that the user is shown."""


class Importer(Protocol):
    """One log format: a module with these four names, and a line of the entry point group `hindstream.importers` that
    names it. The first line of its docstring is what the user reads about it.

    A module may also have `COMPANIONS`, patterns of file names that it reads beside its files by itself, so that a
    directory's listing does not call them unknown.
    """

    NAME: str
    """What the user types: `hindstream import --format NAME FILE`."""

    SOURCE: str
    """`ce_source` of its events."""

    def sniff(self, head: Head) -> bool:
        """Whether a file that begins so is of this format. Never raises.

        By content; by the name only where content cannot tell. Strict enough that no other importer says yes to the
        same file, and patient with later rows that are damaged.
        """
        ...

    def read(self, path: Path) -> Iterator[Row]:
        """Every event of the file, each session's in order and its closing event last, and every row refused.

        Never raises for what the file holds; one bad row costs itself and what cannot be told without it.

        Raises:
            OSError: the file cannot be opened.
        """
        ...


def session_id_of(source: str, content: Any) -> str:
    """A session's id from everything that the log says about it, independent of layout and file name.

    Hashed with ASCII escapes, so that two texts which differ only in a NUL or a lone surrogate stay two sessions.

    Raises:
        Unreadable: it is nested too deeply.
    """
    try:
        plain = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    except RecursionError as err:
        raise Unreadable("it is nested too deeply") from err
    return content_id("session", source, sha256_hex(plain.encode("ascii")))


def check_storable(content: Any) -> None:
    """Refuse before anything is yielded what could not be put on the log later.

    Raises:
        Unreadable: it is nested too deeply, or holds a number that JSON writers refuse.
    """
    if _is_flat(content):
        return
    if nested_deeply(content):
        raise Unreadable("it is nested too deeply")
    try:
        try:
            canonical_json(content)
        except ValueError:  # a lone surrogate, perhaps, which is replaced later; not looked for in what is clean
            canonical_json(sanitise(content)[0])
    except (ValueError, OverflowError) as err:
        raise Unreadable(f"it cannot be written as JSON: {err}") from err


class StorableOnce:
    """`check_storable` for the messages of one conversation, each looked at once however many turns carry it."""

    def __init__(self) -> None:
        # The messages are kept too: as long as they live, no other object has their identity.
        self._seen: dict[int, Any] = {}
        self._faults: dict[int, Unreadable] = {}

    def check(self, messages: Sequence[Any]) -> None:
        """Refuse messages that could not be put on the log.

        Raises:
            Unreadable: one of them is nested too deeply, or holds a number that JSON writers refuse.
        """
        for message in [message for message in messages if id(message) not in self._seen]:
            self._seen[id(message)] = message
            if not _is_flat(message):
                try:
                    check_storable([[message]])  # an event puts two levels around it
                except Unreadable as err:
                    self._faults[id(message)] = err
        for message in messages if self._faults else ():
            if id(message) in self._faults:
                raise self._faults[id(message)]


_TEXTS = frozenset({str, bool, type(None)})


def _is_flat(content: Any) -> bool:
    """Whether it is nothing but texts, as most messages are: then there is nothing to look for."""
    if isinstance(content, dict):
        content = content.values()
    return isinstance(content, list | ValuesView) and _TEXTS.issuperset(map(type, content))


def text_of(content: Any, what: str) -> str:
    """The text of a message's `content`: a string, or a list of text parts.

    Raises:
        Unreadable: it is neither; `what` names it.
    """
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content:
        parts = [part.get("text") if isinstance(part, dict) else None for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) == len(parts):
            return "".join(texts)
    raise Unreadable(f"{what} is neither a string nor a list of text parts")
