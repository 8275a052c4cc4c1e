"""The rows of a file that is JSON lines, one list or one object: each with its line, and damaged ones told apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from producers.importers.json_scan import Broken, Item, excerpt_of, read_text, scan_list
from producers.importers.open_files import Line, lines_of


def json_lines(path: Path) -> Iterator[Item | Broken]:
    """The value of each line that is not blank, one in memory at a time.

    Raises:
        OSError: the file cannot be opened, or it is compressed and damaged.
    """
    for line in lines_of(path):
        yield json_line(line)


def json_line(line: Line) -> Item | Broken:
    """The value of one line."""
    text = line.data.decode("utf-8", errors="surrogateescape")
    try:
        # strict=False: raw control characters in a string are text, however they got there.
        return Item(json.loads(text, strict=False), line.number)
    except json.JSONDecodeError as err:
        why = f"not JSON at column {err.colno}: {err.msg}"
    except RecursionError:
        why = "nested too deeply"
    except ValueError as err:  # an integer of thousands of digits
        why = f"not JSON: {err}"
    return Broken(line.number, why, excerpt_of(text))


def json_rows(path: Path) -> Iterator[Item | Broken]:
    """The items of a JSON list, or the values of JSON lines, or the one object that the file is.

    Raises:
        OSError: the file cannot be opened, or it is compressed and damaged.
    """
    shape = shape_of(path)
    if shape == "lines":
        yield from json_lines(path)
    elif shape == "list":
        yield from scan_list(read_text(path))
    else:
        yield from _whole(read_text(path))


def shape_of(path: Path) -> str:
    """ "list" where the file begins one, "lines" where its first line is an object by itself and more lines follow."""
    lines = lines_of(path)
    first = next(lines, None)
    if first is None or first.data.lstrip().startswith(b"["):
        return "one" if first is None else "list"
    value = json_line(first)
    # A line that ends an object but is no JSON is a damaged row, rather than the beginning of one object.
    row = isinstance(value.value, dict) if isinstance(value, Item) else first.data.rstrip().endswith(b"}")
    return "lines" if row and next(lines, None) is not None else "one"


def _whole(text: str) -> Iterator[Item | Broken]:
    start = len(text) - len(text.lstrip(" \t\r\n"))
    line = text.count("\n", 0, start) + 1
    try:
        value: Any = json.loads(text, strict=False)
    except json.JSONDecodeError as err:
        reason = f"the file is not JSON at line {err.lineno}, column {err.colno}: {err.msg}"
        yield Broken(line, reason, excerpt_of(text[:160]))
    except (RecursionError, ValueError) as err:
        why = "nested too deeply" if isinstance(err, RecursionError) else str(err)
        yield Broken(line, f"the file cannot be read: {why}", excerpt_of(text[:160]))
    else:
        yield Item(value, line)
