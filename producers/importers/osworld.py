"""OSWorld's runs: `traj.jsonl`, one row for each action that was carried out, with `result.txt` beside it.

- Session: a file. Turn: the rows in a row that share `step_num` and `response`: a model may answer with several
  actions, each of which has a row. The answer is `response`, each action one tool call `action`.
- Next state: each row is a `gui_change` of its turn: the name of the screen's picture after the action, and what `info`
  says of it.
- The request: the answers and screens before. The task itself is not in the file unless rows have an `instruction`, nor
  is the first screen, so a request is shorter than what the model saw.
- Verdict: the number in `result.txt` in the same directory, from 0 to 1, on the last turn, as a `test_verdict`. A row's
  `reward` is 0 at every step by the benchmark's making, and is no verdict.
- A row {"Error": ...} is the harness's note that it gave up; it is refused, and the run goes in without it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from producers.importers.base import (
    UNKNOWN_POLICY,
    RefusedRow,
    Row,
    SessionDraft,
    Unreadable,
    check_storable,
    session_id_of,
)
from producers.importers.detect import Head
from producers.importers.gui import Message, action_call, answer_message, screen_message, screen_text
from producers.importers.json_scan import Broken, Item, excerpt_of, json_type
from producers.importers.jsonl import rows_of
from producers.importers.open_files import open_log
from schemas.events import Response

NAME = "osworld"
SOURCE = "hindstream/import/osworld"
COMPANIONS = ("result.txt",)

_LONGEST_RESULT = 64
"""Bytes of `result.txt` that are read: it holds one number."""


def sniff(head: Head) -> bool:
    """See `producers.importers.base.Importer.sniff`."""
    first = next((line for line in head.lines if isinstance(line, dict) and "Error" not in line), None)
    return first is not None and "step_num" in first and "action" in first and "done" in first


def read(path: Path) -> Iterator[Row]:
    """See `producers.importers.base.Importer.read`. The line of a turn is that of its first action."""
    items: list[Item] = []
    for item in rows_of(path):
        if isinstance(item, Broken):
            yield RefusedRow(path.name, item.line, item.reason, item.excerpt)
            continue
        try:
            check_storable(item.value)
            _check(item.value)
            items.append(item)
        except Unreadable as err:
            yield RefusedRow(path.name, item.line, str(err), excerpt_of(item.value))
    if not items:
        return
    verdict, refused = _verdict(path)
    if refused is not None:
        yield refused
    session_id = session_id_of(SOURCE, [verdict, [item.value for item in items]])
    draft = SessionDraft(source=SOURCE, session_id=session_id, format_name=NAME, file=path.name)
    _take(draft, items)
    if verdict is not None:
        draft.add_next_state(draft.turns - 1, "test_verdict", line=items[-1].line, verdict=verdict, content="result")
    yield from draft.events(items[-1].line)


def _take(draft: SessionDraft, items: list[Item]) -> None:
    sent: list[Message] = []
    instruction = next((text for item in items if isinstance(text := item.value.get("instruction"), str)), None)
    if instruction:
        sent.append({"role": "user", "content": instruction})
    for rows in _turns(items):
        first = rows[0].value
        said = first.get("response")
        calls = [action_call(_action(row.value["action"])) for row in rows]
        response = Response(content=said if isinstance(said, str) else None, tool_calls=calls)
        turn = draft.add_turn(
            messages=list(sent),
            response=response,
            finish_reason="tool_calls",
            policy=UNKNOWN_POLICY,
            line=rows[0].line,
        )
        sent.append(answer_message(response))
        for row in rows:
            image, info = _name(row.value.get("screenshot_file")), _info(row.value.get("info"))
            if image is None and info is None:
                continue
            sent.append(screen_message(image, info))
            draft.add_next_state(turn, "gui_change", line=row.line, content=screen_text(image, info))


def _turns(items: list[Item]) -> Iterator[list[Item]]:
    rows: list[Item] = []
    for item in items:
        if rows and _same_turn(rows[0].value, item.value):
            rows.append(item)
            continue
        if rows:
            yield rows
        rows = [item]
    yield rows


def _same_turn(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(one["step_num"] == other["step_num"] and one.get("response") == other.get("response"))


def _check(row: Any) -> None:
    if not isinstance(row, dict):
        raise Unreadable(f"is a JSON {json_type(row)}, not an object")
    if "Error" in row:
        raise Unreadable("the harness's note that the run failed here")
    if "action" not in row or "step_num" not in row:
        raise Unreadable("has no `action` or no `step_num`")
    if row["action"] is None:
        raise Unreadable("`action` is null: nothing was done")


def _action(action: Any) -> str:
    return action if isinstance(action, str) else json.dumps(action, ensure_ascii=False, separators=(",", ":"))


def _name(image: Any) -> str | None:
    return image if isinstance(image, str) and image else None


def _info(info: Any) -> str | None:
    if not info:
        return None
    return info if isinstance(info, str) else json.dumps(info, ensure_ascii=False, separators=(",", ":"))


def _verdict(path: Path) -> tuple[float | None, RefusedRow | None]:
    """The number in `result.txt`, or why it does not go in."""
    beside = path.with_name("result.txt")
    try:
        with open_log(beside) as file:
            text = file.read(_LONGEST_RESULT).decode("utf-8", errors="replace").strip()
    except OSError:
        return None, None  # a run that was not evaluated has none
    try:
        verdict = float(text)
    except ValueError:
        verdict = -1.0
    if not 0.0 <= verdict <= 1.0:
        reason = f"result.txt says {text!r}, not a number from 0 to 1: no verdict goes in"
        return None, RefusedRow(path.name, 1, reason, excerpt_of(text))
    return verdict, None
