"""How the rows of a Claude Code session hang together: which rows are one answer, and what follows what.

A session is a tree by `parentUuid`, but not one of messages. One answer stands in several rows with the same
`message.id`, one a content block, each the parent of the next; a tool's result hangs on the row of its call, and where
tools run while the answer still streams, the next block hangs on that result. Read row by row, parallel calls would
look like branches. Here rows become units: an answer with all its rows and the results that follow it, or a single
row of something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from producers.importers.content import text_field
from producers.importers.json_scan import Broken, Item

Row = dict[str, Any]


@dataclass
class Unit:
    """An answer (`rows` of type assistant, then `results`), or one row of another type.

    Numbers are positions in the list of rows. `parent` is the position of another unit's first row, None for a root;
    `gap` says that a row before this unit is missing.
    """

    rows: list[int]
    is_answer: bool
    side: bool
    results: list[int] = field(default_factory=list)
    parent: int | None = None
    gap: bool = False


class Tree:
    """The units of a session.

    Args:
        rows: every row of the file in order; `Broken` where one could not be read.
    """

    def __init__(self, rows: Sequence[Item | Broken]) -> None:
        self.rows = rows
        self.repeated: list[int] = []
        """Rows whose uuid another row has, with other content."""
        self._parents: dict[int, int | None] = {}
        self._gaps: set[int] = set()
        self._link()
        self.circular: list[int] = self._cut_circles()
        self._unit_of: dict[int, Unit] = {}
        self._owner: dict[int, Unit] = {}
        self.units = self._group()

    def value(self, index: int) -> Row:
        """The row at a position where one could be read."""
        item = self.rows[index]
        assert isinstance(item, Item)
        row: Row = item.value
        return row

    def in_order(self) -> list[Unit]:
        """Every unit, each after its parent, branches in the order of the file."""
        children: dict[int | None, list[Unit]] = {}
        for unit in self.units:
            children.setdefault(unit.parent, []).append(unit)
        ordered: list[Unit] = []
        stack = children.get(None, [])[::-1]
        while stack:
            unit = stack.pop()
            ordered.append(unit)
            stack.extend(children.get(unit.rows[0], [])[::-1])
        return ordered

    def _link(self) -> None:
        """The parent of every row that takes part in the tree."""
        by_uuid: dict[str, int] = {}
        for index, item in enumerate(self.rows):
            if isinstance(item, Item) and (uuid := text_field(item.value, "uuid")) is not None:
                by_uuid.setdefault(uuid, index)
        latest: dict[bool, int] = {}
        gap = False
        for index, item in enumerate(self.rows):
            if isinstance(item, Broken):
                gap = True
                continue
            row: Row = item.value
            uuid = text_field(row, "uuid")
            if uuid is not None and by_uuid[uuid] != index:
                if self.value(by_uuid[uuid]) != row:
                    self.repeated.append(index)
                continue
            if uuid is None and not is_spoken(row):
                continue
            side = is_side(row)
            parent, missing = self._parent(row, by_uuid, latest.get(side))
            self._parents[index] = parent
            if missing or (gap and uuid is None):
                self._gaps.add(index)
            if uuid is None:
                gap = False
            if is_spoken(row):
                latest[side] = index

    def _parent(self, row: Row, by_uuid: dict[str, int], before: int | None) -> tuple[int | None, bool]:
        """The row that this one follows, and whether one in between is missing."""
        if text_field(row, "uuid") is None:
            return before, False
        named = text_field(row, "parentUuid") or text_field(row, "logicalParentUuid")
        if named is None:
            return None, False
        found = by_uuid.get(named)
        if found is None:
            return before, True
        if is_side(self.value(found)) == is_side(row):
            return found, False
        # A subagent starts with what it was told, not with the conversation of who told it.
        return (None, False) if is_side(row) else (before, False)

    def _cut_circles(self) -> list[int]:
        """Take out rows from which no root is reached."""
        reaches: dict[int, bool] = {}
        for start in self._parents:
            path: list[int] = []
            on_path: set[int] = set()
            at: int | None = start
            while at is not None and at not in reaches and at not in on_path and at in self._parents:
                path.append(at)
                on_path.add(at)
                at = self._parents[at]
            good = at is None or (at not in on_path and reaches.get(at, False))
            reaches.update(dict.fromkeys(path, good))
        circular = [index for index, good in reaches.items() if not good]
        for index in circular:
            del self._parents[index]
        return circular

    def _group(self) -> list[Unit]:
        units: list[Unit] = []
        for index in self._parents_first():
            row = self.value(index)
            if not is_spoken(row):
                continue
            above, gap = self._above(index)
            owner = None if above is None else self._unit_of[above]
            if owner is not None and owner.is_answer:
                if row["type"] == "assistant" and self._same_message(owner, row):
                    owner.rows.append(index)
                    self._unit_of[index] = owner
                    continue
                if has_results(row) and not gap:
                    owner.results.append(index)
                    self._unit_of[index] = owner
                    continue
            unit = Unit([index], row["type"] == "assistant", is_side(row), gap=gap)
            unit.parent = None if owner is None else owner.rows[0]
            self._unit_of[index] = unit
            units.append(unit)
        for unit in units:
            unit.results.sort()
            first, rest = unit.rows[0], sorted(unit.rows[1:])
            unit.rows = [first, *rest]
        units.sort(key=lambda unit: unit.rows[0])
        return units

    def _parents_first(self) -> list[int]:
        children: dict[int | None, list[int]] = {}
        for index, parent in self._parents.items():
            children.setdefault(parent, []).append(index)
        ordered: list[int] = []
        stack = children.get(None, [])[::-1]
        while stack:
            index = stack.pop()
            ordered.append(index)
            stack.extend(children.get(index, [])[::-1])
        return ordered

    def _above(self, index: int) -> tuple[int | None, bool]:
        """The nearest row above that says something, past those that only keep books."""
        gap = index in self._gaps
        at = self._parents[index]
        while at is not None and at not in self._unit_of:
            gap = gap or at in self._gaps
            at = self._parents[at]
        return at, gap

    def _same_message(self, unit: Unit, row: Row) -> bool:
        mine = message_id(row)
        return mine is not None and mine == message_id(self.value(unit.rows[0]))


def is_spoken(row: Row) -> bool:
    """Whether the row belongs to the conversation; the others keep books."""
    return row.get("type") in ("user", "assistant") or queued_text(row) is not None


def is_side(row: Row) -> bool:
    """Whether the row is a subagent's."""
    return row.get("isSidechain") is True


def message_id(row: Row) -> str | None:
    """The id of the answer of which this row is a part."""
    message = row.get("message")
    return text_field(message, "id") if isinstance(message, dict) else None


def has_results(row: Row) -> bool:
    """Whether the row brings a tool's result."""
    message = row.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    return isinstance(content, list) and any(
        isinstance(block, dict) and block.get("type") == "tool_result" for block in content
    )


def queued_text(row: Row) -> Any:
    """What a person typed while the policy was at work: it stands in an attachment, not in a row of type user."""
    attachment = row.get("attachment")
    if row.get("type") != "attachment" or not isinstance(attachment, dict):
        return None
    if attachment.get("type") != "queued_command" or attachment.get("commandMode", "prompt") != "prompt":
        return None
    return attachment.get("prompt")
