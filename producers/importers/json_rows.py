"""The rows of a file that is JSON lines, one list or one object: each with its line, and damaged ones told apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from producers.importers.json_scan import Broken, Item, excerpt_of, read_text, stream_list
from producers.importers.jsonl import BrokenLine, rows_of


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
    """ "list" where the file begins one, "lines" where its first line is an object by itself and more follow, else
    "one".

    Raises:
        OSError: the file cannot be opened, or it is compressed and damaged.
    """
    rows = rows_of(path)
    first, second = next(rows, None), next(rows, None)
    if isinstance(first, BrokenLine):
        if first.text.lstrip().startswith("["):
            return "list"
        # A damaged row, rather than the beginning of one object: it ends one, or the next line is one by itself.
        whole = isinstance(second, Item) and isinstance(second.value, dict)
        row = whole or first.text.rstrip().endswith("}")
    else:
        if isinstance(first, Item) and isinstance(first.value, list):
            return "list"
        row = isinstance(first, Item) and isinstance(first.value, dict)
    return "lines" if row and second is not None else "one"


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
