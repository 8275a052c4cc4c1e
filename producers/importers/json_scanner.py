"""A walk through JSON text from one item of a list to the next: a broken item costs itself, and each has its line."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

_SPACE = re.compile(r"[ \t\r\n]*")
_EXCERPT = 160
"""Characters of a row that could not be read which are shown: two lines on a screen."""
CHUNK = 1 << 20
"""Bytes read at once from a file that is streamed, and dropped at once: small beside memory, large beside an item."""
_MARGIN = 16
"""JSON that goes wrong this near to the end of what is in memory may only be cut there: no literal, escape or sign of
a number is longer."""


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


class Scanner:
    """Walks through JSON text. Positions count from the start of what is in memory.

    Args:
        text: the beginning.
        more: gives at least the next so many characters, fewer only at the end ("" when there are none); None where
            `text` is all.
    """

    def __init__(self, text: str, more: Callable[[int], str] | None = None) -> None:
        self.text, self._more = text, more
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        # How many lines, and characters of the line that is begun, were dropped before `text`.
        self._lines, self._columns = 0, 0
        # strict=False: raw control characters in a string are text, however they got there.
        self._decoder = json.JSONDecoder(strict=False)

    def at(self, pos: int) -> str:
        """The character there; "" at the end."""
        return self.text[pos : pos + 1]

    def line_of(self, pos: int) -> int:
        return self._lines + bisect_left(self._newlines, pos) + 1

    def why(self, err: Exception) -> str:
        if isinstance(err, json.JSONDecodeError):
            start = self.text.rfind("\n", 0, err.pos)
            column = err.pos - start + (self._columns if start < 0 else 0)
            return f"not JSON at line {self.line_of(err.pos)}, column {column}: {err.msg}"
        return "nested too deeply" if isinstance(err, RecursionError) else str(err)

    def skip(self, pos: int) -> int:
        while True:
            match = _SPACE.match(self.text, pos)
            pos = match.end() if match else pos
            if pos < len(self.text) or not self._grow():
                return pos

    def decode(self, pos: int) -> tuple[Any, int]:
        while True:
            try:
                value, end = self._decoder.raw_decode(self.text, pos)
            except json.JSONDecodeError as err:
                # A string is not ended, or it goes wrong where the text in memory ends: perhaps it is only cut there.
                cut = err.msg.startswith("Unterminated") or err.pos > len(self.text) - _MARGIN
                if cut and self._grow():
                    continue
                raise
            # A number that ends with the text in memory may go on.
            if end <= len(self.text) - _MARGIN or not self._grow():
                return value, end

    def name(self, pos: int) -> tuple[str, int]:
        if self.at(pos) != '"':
            raise json.JSONDecodeError("Expecting a field's name in double quotes", self.text, pos)
        return self.decode(pos)

    def expect(self, character: str, pos: int) -> int:
        pos = self.skip(pos)
        if self.at(pos) != character:
            raise json.JSONDecodeError(f"Expecting {character!r}", self.text, pos)
        return self.skip(pos + 1)

    def broken(self, pos: int, reason: str) -> Broken:
        while len(self.text) < pos + _EXCERPT + 1 and self._grow():
            pass
        return Broken(self.line_of(pos), reason, _shorten(self.text[pos : pos + _EXCERPT + 1]))

    def not_a(self, wanted: str, pos: int) -> Broken:
        try:
            value, _ = self.decode(pos)
        except (ValueError, RecursionError) as err:
            return self.broken(pos, f"the file is not JSON: {self.why(err)}")
        return self.broken(pos, f"the file is a JSON {json_type(value)}, not the {wanted} that this format is")

    def items(self, pos: int) -> Generator[Item | Broken, None, int | None]:
        """Items of the list that opens at `pos`; returns where it ends, None where its end could not be found.

        Text before an item is dropped where more is to come, so a caller with `more` keeps no positions over a step.
        """
        pos = self.skip(pos + 1)
        if self.at(pos) == "]":
            return pos + 1
        while True:
            start = pos = self._dropped_before(pos)
            try:
                value, pos = self.decode(start)
            except (ValueError, RecursionError) as err:
                fault, why = start, self.why(err)
            else:
                yield Item(value, self.line_of(start))
                fault = self.skip(pos)
                if self.at(fault) == "]":
                    return fault + 1
                if self.at(fault) == ",":
                    pos = self.skip(fault + 1)
                    continue
                why = self.why(json.JSONDecodeError("Expecting ',' or ']'", self.text, fault))
            broken = self.broken(fault, why)
            resumed = self._next_object(start)
            went_on = "nothing after it could be read"
            if resumed is not None:
                went_on = f"reading went on at line {self.line_of(resumed)}"
            yield Broken(broken.line, f"{why}; {went_on}", broken.excerpt)
            if resumed is None:
                return None
            pos = resumed

    def _next_object(self, start: int) -> int | None:
        """Where the next line begins an object at the indentation of the item at `start`."""
        line_start = self.text.rfind("\n", 0, start) + 1
        indent = self.text[line_start:start]
        if indent.strip() or line_start == 0:
            return None
        wanted = f"\n{indent}{{"
        while (found := self.text.find(wanted, start)) < 0:
            start = len(self.text) - len(wanted) + 1
            if self._more is not None:
                start -= self._drop(start)
            if not self._grow():
                return None
        return found + 1 + len(indent)

    def _grow(self) -> bool:
        """Bring more text into memory; False at the end. As much as there is, so that an item longer than any chunk is
        not begun again for each."""
        text = self._more(len(self.text)) if self._more is not None else ""
        if not text:
            self._more = None
            return False
        here = len(self.text)
        self.text += text
        self._newlines.extend(here + match.start() for match in re.finditer("\n", text))
        return True

    def _dropped_before(self, pos: int) -> int:
        """Where `pos` is after what stands before it was dropped, but for the white space that indents it."""
        if self._more is None or pos < CHUNK:
            return pos
        keep = pos
        while keep and self.text[keep - 1] in " \t\r\n":
            keep -= 1
        return pos - self._drop(keep)

    def _drop(self, count: int) -> int:
        lines = bisect_left(self._newlines, count)
        self._lines += lines
        self._columns = count - self._newlines[lines - 1] - 1 if lines else self._columns + count
        self._newlines = [newline - count for newline in self._newlines[lines:]]
        self.text = self.text[count:]
        return count


def excerpt_of(value: Any) -> str:
    """How `value` begins as JSON, in ASCII."""
    try:
        return _shorten(json.dumps(value, ensure_ascii=True))
    except RecursionError:
        return f"({json_type(value)}, nested too deeply to show)"


def json_type(value: Any) -> str:
    """What JSON calls the type of `value`."""
    names = {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _shorten(text: str) -> str:
    clean = text.encode("ascii", "backslashreplace").decode("ascii").replace("\n", " ").replace("\r", " ")
    return clean if len(clean) <= _EXCERPT else clean[:_EXCERPT] + "..."
