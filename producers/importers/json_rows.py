"""The rows of a file that is JSON lines, one list or one object: each with its line, and damaged ones told apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from producers.importers.json_scan import Broken, Item, excerpt_of, read_text, stream_list
from producers.importers.jsonl import rows_of
from producers.importers.open_files import lines_of, open_log

_PEEK = 1 << 12
"""Bytes in which the first character that is no space is looked for."""


def json_rows(path: Path) -> Iterator[Item | Broken]:
    """The items of a JSON list, or the values of JSON lines, or the one object that the file is.

    Raises:
        OSError: the file cannot be opened, or it is compressed and damaged.
    """
    shape = shape_of(path)
    if shape == "lines":
        yield from rows_of(path)
    elif shape == "list":
        yield from stream_list(path)
    else:
        yield from _whole(read_text(path))


def shape_of(path: Path) -> str:
    """ "list" where the file begins one, "lines" where it is JSON lines of objects, "one" where it is one object.

    Raises:
        OSError: the file cannot be opened, or it is compressed and damaged.
    """
    with open_log(path) as file:
        start = file.read(_PEEK).decode("utf-8-sig", errors="replace").lstrip()
    if start.startswith("["):
        return "list"  # before any line is read: a list may be one line of a gigabyte
    lines = lines_of(path)
    first, second = next(lines, None), next(lines, None)
    if first is None or second is None:
        return "one"
    # Where the first line does not end an object it begins one of many lines, or is a damaged row before a whole one.
    return "lines" if first.data.rstrip().endswith(b"}") or _is_object(second.data) else "one"


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


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
