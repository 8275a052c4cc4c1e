"""JSON text read item by item, so that one broken item costs itself and not the file, and each has its line.

The standard parser does the work; this module only walks from one item of the outermost list or object to the next.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from producers.importers.open_files import open_log

_SPACE = re.compile(r"[ \t\r\n]*")
_EXCERPT = 160
"""Characters of a row that could not be read which are shown: two lines on a screen."""


@dataclass(frozen=True)
class Item:
    """One value and the 1-based line on which it starts."""

    value: Any
    line: int


@dataclass(frozen=True)
class Broken:
    """What could not be read: the 1-based line on which it starts, why, and how it begins."""

    line: int
    reason: str
    excerpt: str


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


def excerpt_of(value: Any) -> str:
    """How `value` begins as JSON, in ASCII."""
    try:
        return _shorten(json.dumps(value, ensure_ascii=True))
    except RecursionError:
        return f"({json_type(value)}, nested too deeply to show)"


def scan_list(text: str) -> Iterator[Item | Broken]:
    """The items of a JSON list, in order.

    After a broken item, reading goes on at the next line that begins an object at the same indentation; where items
    do not stand on lines of their own, what follows is lost and the reason says so.
    """
    scanner = _Scanner(text)
    start = scanner.skip(0)
    if text[start : start + 1] != "[":
        yield scanner.not_a("list", start)
        return
    end = yield from scanner.items(start)
    if end is not None and (rest := scanner.skip(end)) < len(text):
        yield scanner.broken(rest, "text after the end of the list")


def scan_object(text: str, lists: frozenset[str]) -> ScannedObject:
    """The fields of a JSON object; those named in `lists` item by item. Reading stops at what cannot be skipped."""
    scanner, found = _Scanner(text), ScannedObject()
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
            found.broken.append(scanner.broken(start, f"{_why(err)}; nothing after it could be read"))
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


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        # strict=False: raw control characters in a string are text, however they got there.
        self._decoder = json.JSONDecoder(strict=False)

    def line_of(self, pos: int) -> int:
        return bisect_left(self._newlines, pos) + 1

    def skip(self, pos: int) -> int:
        match = _SPACE.match(self.text, pos)
        return match.end() if match else pos

    def decode(self, pos: int) -> tuple[Any, int]:
        return self._decoder.raw_decode(self.text, pos)

    def name(self, pos: int) -> tuple[str, int]:
        if self.text[pos : pos + 1] != '"':
            raise json.JSONDecodeError("Expecting a field's name in double quotes", self.text, pos)
        return self.decode(pos)

    def expect(self, character: str, pos: int) -> int:
        pos = self.skip(pos)
        if self.text[pos : pos + 1] != character:
            raise json.JSONDecodeError(f"Expecting {character!r}", self.text, pos)
        return self.skip(pos + 1)

    def broken(self, pos: int, reason: str) -> Broken:
        return Broken(self.line_of(pos), reason, _shorten(self.text[pos : pos + _EXCERPT + 1]))

    def not_a(self, wanted: str, pos: int) -> Broken:
        try:
            value, _ = self.decode(pos)
        except (ValueError, RecursionError) as err:
            return self.broken(pos, f"the file is not JSON: {_why(err)}")
        return self.broken(pos, f"the file is a JSON {json_type(value)}, not the {wanted} that this format is")

    def items(self, pos: int) -> Generator[Item | Broken, None, int | None]:
        """Items of the list that opens at `pos`; returns where it ends, None where its end could not be found."""
        pos = self.skip(pos + 1)
        if self.text[pos : pos + 1] == "]":
            return pos + 1
        while True:
            start = pos
            try:
                value, pos = self.decode(start)
            except (ValueError, RecursionError) as err:
                fault, why = start, _why(err)
            else:
                yield Item(value, self.line_of(start))
                fault = self.skip(pos)
                if self.text[fault : fault + 1] == "]":
                    return fault + 1
                if self.text[fault : fault + 1] == ",":
                    pos = self.skip(fault + 1)
                    continue
                why = _why(json.JSONDecodeError("Expecting ',' or ']'", self.text, fault))
            resumed = self._next_object(start)
            went_on = "nothing after it could be read"
            if resumed is not None:
                went_on = f"reading went on at line {self.line_of(resumed)}"
            yield self.broken(fault, f"{why}; {went_on}")
            if resumed is None:
                return None
            pos = resumed

    def _next_object(self, start: int) -> int | None:
        """Where the next line begins an object at the indentation of the item at `start`."""
        line_start = self.text.rfind("\n", 0, start) + 1
        indent = self.text[line_start:start]
        if indent.strip() or line_start == 0:
            return None
        found = self.text.find(f"\n{indent}{{", start)
        return None if found < 0 else found + 1 + len(indent)


def json_type(value: Any) -> str:
    """What JSON calls the type of `value`."""
    names = {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _why(err: Exception) -> str:
    if isinstance(err, json.JSONDecodeError):
        return f"not JSON at line {err.lineno}, column {err.colno}: {err.msg}"
    return "nested too deeply" if isinstance(err, RecursionError) else str(err)


def _shorten(text: str) -> str:
    clean = text.encode("ascii", "backslashreplace").decode("ascii").replace("\n", " ").replace("\r", " ")
    return clean if len(clean) <= _EXCERPT else clean[:_EXCERPT] + "..."
