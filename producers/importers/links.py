"""Rows that name their parents: the tree they make, however the lines lie, repeat or are missing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from producers.importers.json_scan import Broken, Item

Row = dict[str, Any]


class Links:
    """Which row follows which. A row without an id follows the row before it.

    Args:
        rows: every row of the file in order; `Broken` where one could not be read.
        own: the row's id, None where it has none.
        above: the id of its parent, None for a root.
        speaks: whether the row belongs to the conversation; others take part only if they have an id, as links.
        lane: rows of different lanes never follow each other: one that names a parent in another lane is a root, or
            in the first lane (a false one) follows that lane's row before it.
    """

    def __init__(
        self,
        rows: Sequence[Item | Broken],
        *,
        own: Callable[[Row], str | None],
        above: Callable[[Row], str | None],
        speaks: Callable[[Row], bool],
        lane: Callable[[Row], Hashable] = lambda row: False,
    ) -> None:
        self._rows, self._own, self._above, self._speaks, self._lane = rows, own, above, speaks, lane
        self.parents: dict[int, int | None] = {}
        """Position of a row -> position of the row that it follows, None for a root."""
        self.gaps: set[int] = set()
        """Rows before which one is missing."""
        self.repeated: list[int] = []
        """Rows whose id an earlier one has, with other content. The same row once more is left out in silence."""
        self._link()
        self.circular: list[int] = self._cut_circles()
        """Rows from which no root is reached."""

    def value(self, index: int) -> Row:
        """The row at a position where one could be read."""
        item = self._rows[index]
        assert isinstance(item, Item)
        row: Row = item.value
        return row

    def in_order(self) -> list[int]:
        """Every row after its parent, branches in the order of the file."""
        return parents_first(self.parents)

    def _link(self) -> None:
        by_id: dict[str, int] = {}
        for index, item in enumerate(self._rows):
            if isinstance(item, Item) and (own := self._own(item.value)) is not None:
                by_id.setdefault(own, index)
        latest: dict[Hashable, int] = {}
        gap = False
        for index, item in enumerate(self._rows):
            if isinstance(item, Broken):
                gap = True
                continue
            row: Row = item.value
            own = self._own(row)
            if own is not None and by_id[own] != index:
                if self.value(by_id[own]) != row:
                    self.repeated.append(index)
                continue
            if own is None and not self._speaks(row):
                continue
            parent, missing = self._parent(row, by_id, latest.get(self._lane(row)))
            self.parents[index] = parent
            if missing or (gap and own is None):
                self.gaps.add(index)
            if own is None:
                gap = False
            if self._speaks(row):
                latest[self._lane(row)] = index

    def _parent(self, row: Row, by_id: dict[str, int], before: int | None) -> tuple[int | None, bool]:
        """The row that this one follows, and whether one in between is missing."""
        if self._own(row) is None:
            return before, False
        named = self._above(row)
        if named is None:
            return None, False
        found = by_id.get(named)
        if found is None:
            return before, True
        lane = self._lane(row)
        if self._lane(self.value(found)) == lane:
            return found, False
        return (None, False) if lane else (before, False)

    def _cut_circles(self) -> list[int]:
        reaches: dict[int, bool] = {}
        for start in self.parents:
            path: dict[int, None] = {}
            at: int | None = start
            while at is not None and at not in reaches and at not in path:
                path[at] = None
                at = self.parents[at]
            good = at is None or (at not in path and reaches[at])
            reaches.update(dict.fromkeys(path, good))
        circular = [index for index, good in reaches.items() if not good]
        for index in circular:
            del self.parents[index]
        return sorted(circular)


def parents_first(parents: dict[int, int | None]) -> list[int]:
    """Every key after its parent; siblings in the order of the dict."""
    children: dict[int | None, list[int]] = {}
    for index, parent in parents.items():
        children.setdefault(parent, []).append(index)
    ordered: list[int] = []
    stack = children.get(None, [])[::-1]
    while stack:
        index = stack.pop()
        ordered.append(index)
        stack.extend(children.get(index, [])[::-1])
    return ordered
