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
from producers.importers.links import Links, parents_first

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
        self.links = Links(
            rows,
            # The stream of a run without a terminal has uuids and no parents: there rows follow each other.
            own=lambda row: text_field(row, "uuid") if "parentUuid" in row else None,
            above=lambda row: text_field(row, "parentUuid") or text_field(row, "logicalParentUuid"),
            speaks=is_spoken,
            lane=subagent,  # which starts with what it was told, not with the conversation of who told it
        )
        self._unit_of: dict[int, Unit] = {}
        self._units = self._group()

    def in_order(self) -> list[Unit]:
        """Every unit, each after its parent, branches in the order of the file."""
        units = {unit.rows[0]: unit for unit in sorted(self._units, key=lambda unit: unit.rows[0])}
        return [units[first] for first in parents_first({first: unit.parent for first, unit in units.items()})]

    def _group(self) -> list[Unit]:
        units: list[Unit] = []
        for index in self.links.in_order():
            row = self.links.value(index)
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
            unit = Unit([index], row["type"] == "assistant", subagent(row) is not False, gap=gap)
            unit.parent = None if owner is None else owner.rows[0]
            self._unit_of[index] = unit
            units.append(unit)
        for unit in units:
            unit.results.sort()
        return units

    def _above(self, index: int) -> tuple[int | None, bool]:
        """The nearest row above that says something, past those that only keep books."""
        gap = index in self.links.gaps
        at = self.links.parents[index]
        while at is not None and at not in self._unit_of:
            gap = gap or at in self.links.gaps
            at = self.links.parents[at]
        return at, gap

    def _same_message(self, unit: Unit, row: Row) -> bool:
        mine = message_id(row)
        return mine is not None and mine == message_id(self.links.value(unit.rows[0]))


def is_spoken(row: Row) -> bool:
    """Whether the row belongs to the conversation; the others keep books."""
    return row.get("type") in ("user", "assistant") or queued_text(row) is not None


def subagent(row: Row) -> str | bool:
    """Whose row it is: a subagent by name where it has one, False for the session's own policy."""
    told_by = text_field(row, "parent_tool_use_id")
    if row.get("isSidechain") is not True and told_by is None:
        return False
    return text_field(row, "agentId") or told_by or True


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
