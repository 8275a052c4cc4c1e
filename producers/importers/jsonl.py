"""JSON lines: one row a line, a bad line costing only itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from producers.importers.base import RefusedRow, Unreadable, check_storable
from producers.importers.json_scan import Broken, Item, excerpt_of, json_type
from producers.importers.open_files import lines_of

_decoder = json.JSONDecoder(strict=False)


@dataclass(frozen=True)
class BrokenLine(Broken):
    """A line that is no JSON; `text` is all of it, in which a reader may look what it damages."""

    text: str


def rows_of(path: Path) -> Iterator[Item | Broken]:
    """The value of every line that is not blank, and the lines that are no JSON.

    Raises:
        OSError: the file cannot be opened.
    """
    for line in lines_of(path):
        # A byte that is not UTF-8 becomes a lone surrogate, which the envelope keeps in `raw`.
        text = line.data.decode("utf-8", errors="surrogateescape")
        try:
            yield Item(_decoder.decode(text), line.number)
        except json.JSONDecodeError as err:
            yield BrokenLine(line.number, f"not JSON at column {err.colno}: {err.msg}", _begin(text), text)
        except (ValueError, RecursionError) as err:
            why = "nested too deeply" if isinstance(err, RecursionError) else str(err)
            yield BrokenLine(line.number, why, _begin(text), text)


def split_rows(file: str, found: Iterable[Item | Broken]) -> tuple[list[Item | Broken], list[RefusedRow]]:
    """The rows in order, each an object that can be stored or `Broken`; and a refusal for each broken one."""
    rows: list[Item | Broken] = []
    refused: list[RefusedRow] = []
    for row in found:
        usable = _usable(row)
        rows.append(usable)
        if isinstance(usable, Broken):
            refused.append(RefusedRow(file, usable.line, usable.reason, usable.excerpt))
    return rows, refused


def values_of(rows: Iterable[Item | Broken]) -> list[Any]:
    """The values of those rows that could be read."""
    return [row.value for row in rows if isinstance(row, Item)]


def _usable(row: Item | Broken) -> Item | Broken:
    if isinstance(row, Broken):
        return row
    if not isinstance(row.value, dict):
        return Broken(row.line, f"a JSON {json_type(row.value)}, not an object", excerpt_of(row.value))
    try:
        check_storable(row.value)
    except Unreadable as err:
        return Broken(row.line, str(err), excerpt_of(row.value))
    return row


def _begin(text: str) -> str:
    return excerpt_of(text[:200])[1:-1]
