"""LangSmith's logs as JSON lines: runs (traces of any framework), or the event stream of a managed agent session.

Which of the two a file is, its first row that can be read tells: a run is an object, an event a list [name, payload].

- Runs: see `producers.importers.langsmith_runs`. Turn: a run of type `llm`; next states are read from the requests and
  from runs of type `tool`; `feedback_stats` become feedback or verdicts.
- Events: see `producers.importers.langsmith_events`. Turn: the agent's events between a model request's start and its
  end; next states are tool results and user messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from producers.importers import langsmith_events, langsmith_runs
from producers.importers.base import RefusedRow, Row
from producers.importers.detect import Head
from producers.importers.json_rows import json_rows
from producers.importers.json_scan import Broken, Item
from producers.importers.jsonl import rows_of

NAME = "langsmith"
SOURCE = "hindstream/import/langsmith"


def sniff(head: Head) -> bool:
    """See `producers.importers.base.Importer.sniff`."""
    if any(langsmith_events.is_event(line) for line in head.lines[:3]):
        return True
    return langsmith_runs.is_run(head.object)


def read(path: Path) -> Iterator[Row]:
    """See `producers.importers.base.Importer.read`."""
    before: list[Item | Broken] = []
    items = rows_of(path)
    first = None
    for item in items:
        before.append(item)
        if isinstance(item, Item):
            first = item
            break
    if first is not None and langsmith_events.is_event(first.value):
        yield from langsmith_events.read(chain(before, items), path.name, source=SOURCE, format_name=NAME)
    elif first is not None or before:
        yield from langsmith_runs.read(json_rows(path), path.name, source=SOURCE, format_name=NAME)
    else:
        yield RefusedRow(path.name, 1, "the file is empty", "")
