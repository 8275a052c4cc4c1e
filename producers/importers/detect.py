"""Which format a file is, told by how its content begins."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from pydantic_core import from_json

from producers.importers.open_files import open_log

HEAD_BYTES = 1 << 18
"""How much of a file is looked at. The first object of every format known shows what it is within a few KiB; a system
prompt before that is seldom over 100 KiB."""

HEAD_LINES = 100
"""Lines that are parsed of a head: every format of rows shows what it is in the first few, damaged ones among them."""

_DECODER = json.JSONDecoder(strict=False)
_REFUSED = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_CONTROL = re.compile(r"[\x00-\x1f]")
"""What the strict parser of cut JSON takes nowhere, or nowhere in text."""


@dataclass(frozen=True)
class Head:
    """How a file begins: its name (no directory, no `.gz` or `.zst`), its first `HEAD_BYTES` bytes, decompressed, and
    whether that is all of it."""

    name: str
    data: bytes
    whole: bool

    @cached_property
    def text(self) -> str:
        """`data` as text, without a byte order mark; what is no UTF-8 is replaced."""
        return self.data.decode("utf-8-sig", errors="replace")

    @cached_property
    def value(self) -> Any:
        """The first JSON value of the file, as far as it shows: what is cut off or broken inside it is left out.

        None where the file does not begin with JSON. Of a file of JSON lines, the first line.
        """
        return _first_value(self.text) if self._only is None else self._only

    @cached_property
    def lines(self) -> list[Any]:
        """The objects and lists among the first lines that are in `data` whole and are JSON by themselves, at most
        `HEAD_LINES`; of JSON on one line, that."""
        if self._only is not None and "\n" in self.text.strip():
            return []
        lines = self.text.split("\n")
        if not self.whole and len(lines) > 1:
            lines.pop()
        # Of JSON that is spread over lines hardly any has both ends, and trying each would take longer than an import.
        rows = [line for line in lines if line.strip()[:1] in ("{", "[") and line.rstrip()[-1:] in ("}", "]")]
        return [value for line in rows[:HEAD_LINES] if (value := _whole(line)) is not None]

    @cached_property
    def _only(self) -> Any:
        """The value that the whole file is; None where it is none, or too long or damaged to tell so quickly."""
        try:
            return msgspec.json.decode(self.data) if self.whole else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    @cached_property
    def object(self) -> dict[str, Any]:
        """The first object: `value`, or its first item where it is a list; {} where that is none."""
        value = self.value
        if isinstance(value, list):
            value = value[0] if value else None
        return value if isinstance(value, dict) else {}


def head_of(path: Path) -> Head:
    """How the file begins.

    Raises:
        OSError: the file cannot be opened.
    """
    with open_log(path) as file:
        data = file.read(HEAD_BYTES + 1)
    name = path.stem if path.suffix.lower() in (".gz", ".zst") else path.name
    return Head(name, data[:HEAD_BYTES], len(data) <= HEAD_BYTES)


def _first_value(text: str) -> Any:
    text = text.lstrip(" \t\r\n")
    try:
        return _DECODER.raw_decode(text)[0]
    except json.JSONDecodeError as err:
        # Up to where it goes wrong it is the beginning of JSON, and that much tells the format.
        begun = _REFUSED.sub("?", _CONTROL.sub(" ", text[: err.pos]))
    except RecursionError:
        return None
    try:
        return from_json(begun, allow_partial=True) if begun.strip() else None
    except ValueError:
        return None


def _whole(line: str) -> Any:
    try:
        return _DECODER.decode(line)
    except (ValueError, RecursionError):
        return None
