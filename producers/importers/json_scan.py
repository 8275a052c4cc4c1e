"""JSON text read item by item, so that one broken item costs itself and not the file, and each has its line.

The standard parser does the work; this module only walks from one item of the outermost list or object to the next.
"""

from __future__ import annotations

import codecs
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from producers.importers.json_scanner import CHUNK, Broken, Item, Scanner, excerpt_of, json_type
from producers.importers.json_sound import scan_sound_object
from producers.importers.open_files import open_log

__all__ = [
    "Broken",
    "Field",
    "Item",
    "ScannedObject",
    "excerpt_of",
    "json_type",
    "read_text",
    "scan_list",
    "scan_object",
    "stream_list",
]


@dataclass
class Field:
    """A field of the outermost object. `items` is set for a list that was asked for item by item; `whole` is False
    where the file breaks off inside it."""

    line: int
    value: Any = None
    items: list[Item | Broken] | None = None
    whole: bool = True

    def readable(self) -> Any:
        """The value, or of a list the items that could be read."""
        if self.items is None:
            return self.value
        return [item.value for item in self.items if isinstance(item, Item)]


@dataclass
class ScannedObject:
    """The fields of the outermost object, and what of it could not be read."""

    fields: dict[str, Field] = field(default_factory=dict)
    broken: list[Broken] = field(default_factory=list)


def read_text(path: Path) -> str:
    """The file as text, decompressed. A byte that is not UTF-8 becomes a lone surrogate, which the envelope keeps in
    `raw`.

    Raises:
        OSError: the file cannot be opened.
    """
    with open_log(path) as file:
        return file.read().decode("utf-8-sig", errors="surrogateescape")


def scan_list(text: str) -> Iterator[Item | Broken]:
    """The items of a JSON list, in order.

    After a broken item, reading goes on at the next line that begins an object at the same indentation; where items
    do not stand on lines of their own, what follows is lost and the reason says so.
    """
    yield from _list(Scanner(text))


def stream_list(path: Path) -> Iterator[Item | Broken]:
    """As `scan_list(read_text(path))`, with one item at a time in memory: for files larger than memory.

    Raises:
        OSError: the file cannot be opened.
    """
    with open_log(path) as file:
        decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="surrogateescape")

        def more(size: int) -> str:
            while data := file.read(max(size, CHUNK)):
                if text := decoder.decode(data):
                    return text
            return decoder.decode(b"", final=True)

        yield from _list(Scanner("", more))


def _list(scanner: Scanner) -> Iterator[Item | Broken]:
    start = scanner.skip(0)
    if scanner.at(start) != "[":
        yield scanner.not_a("list", start)
        return
    end = yield from scanner.items(start)
    if end is not None and scanner.at(rest := scanner.skip(end)):
        yield scanner.broken(rest, "text after the end of the list")


def scan_object(text: str, lists: frozenset[str]) -> ScannedObject:
    """The fields of a JSON object; those named in `lists` item by item. Reading stops at what cannot be skipped."""
    sound = scan_sound_object(text, lists)
    if sound is not None:
        return ScannedObject({name: Field(one.line, one.value, one.items) for name, one in sound.items()})
    scanner, found = Scanner(text), ScannedObject()
    pos = scanner.skip(0)
    if text[pos : pos + 1] != "{":
        found.broken.append(scanner.not_a("object", pos))
        return found
    pos = scanner.skip(pos + 1)
    while text[pos : pos + 1] != "}":
        start = pos
        try:
            name, pos = scanner.name(pos)
            pos = scanner.expect(":", pos)
            line = scanner.line_of(pos)
            if name in lists and text[pos : pos + 1] == "[":
                collected: list[Item | Broken] = []
                end = _drain(scanner.items(pos), collected)
                found.fields[name] = Field(line, items=collected, whole=end is not None)
                if end is None:
                    return found
                pos = end
            else:
                value, pos = scanner.decode(pos)
                found.fields[name] = Field(line, value)
            pos = scanner.skip(pos)
            if text[pos : pos + 1] != "}":
                pos = scanner.expect(",", pos)
        except (ValueError, RecursionError) as err:
            found.broken.append(scanner.broken(start, f"{scanner.why(err)}; nothing after it could be read"))
            return found
    if (rest := scanner.skip(pos + 1)) < len(text):
        found.broken.append(scanner.broken(rest, "text after the end of the object"))
    return found


def _drain(items: Generator[Item | Broken, None, int | None], into: list[Item | Broken]) -> int | None:
    while True:
        try:
            into.append(next(items))
        except StopIteration as stop:
            end: int | None = stop.value
            return end
