"""ShareGPT's conversations: entries {conversations: [{from, value}, ...]}, a JSON list or JSON lines.

- Session: an entry. Turn: each row from `gpt` (also `assistant`, `chatgpt`, `bing`, `bard`, `model`), and each
  `function_call`, whose value is one JSON call {name, arguments} or a list of them (parallel calls).
- Next state: each row from `observation`, `tool` or `function` (`tool_result`, of the turn just before it: rows have no
  ids) and the first row from `human` or `user` after a turn (`user_reply`). A human row that is nothing but
  `<tool_response>` blocks is machine text that a chat template put there: a tool result.
- `system` is a row, or a field of the entry; `tools` a field, a list or a list as text.
- `chosen` and `rejected` (a preference) are two branches of one group, judged 1.0 and 0.0. `label` or `kto_tag`, true
  or false, judges the last turn 1.0 or 0.0.
- Policy: `unknown`, or the entry's `model`.
"""

from __future__ import annotations

import json
import re
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
from producers.importers.chat import Chat, Message
from producers.importers.detect import Head
from producers.importers.encoded import raw_arguments
from producers.importers.json_rows import json_rows
from producers.importers.json_scan import Broken, excerpt_of, json_type
from schemas.digests import content_id

NAME = "sharegpt"
SOURCE = "hindstream/import/sharegpt"

_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "model", "function_call"), "assistant"),
    **dict.fromkeys(("observation", "tool", "function"), "tool"),
    "system": "system",
}
_LISTS = ("conversations", "conversation", "items")
_TOOL_RESPONSES = re.compile(r"\s*(<tool_response>.*?</tool_response>\s*)+", re.DOTALL)


def sniff(head: Head) -> bool:
    """See `producers.importers.base.Importer.sniff`."""
    rows = _rows(head.object)
    if not rows or not isinstance(rows[0], dict):
        return False
    # Of a first row longer than the head, the value does not show.
    return isinstance(rows[0].get("from"), str) and ("value" in rows[0] or not head.whole)


def read(path: Path) -> Iterator[Row]:
    """See `producers.importers.base.Importer.read`. The line of every row is that on which its entry starts."""
    first_line: dict[str, int] = {}
    for number, item in enumerate(json_rows(path), start=1):
        if isinstance(item, Broken):
            yield RefusedRow(path.name, item.line, item.reason, item.excerpt)
            continue
        where = f"entry {number}"
        try:
            rows = _entry(item.value)
            session_id = session_id_of(SOURCE, item.value)
            if session_id in first_line:
                raise Unreadable(f"repeats the entry at line {first_line[session_id]} word for word, which is in")
        except Unreadable as err:
            yield RefusedRow(path.name, item.line, f"{where} {err}", excerpt_of(item.value))
            continue
        first_line[session_id] = item.line
        draft = SessionDraft(source=SOURCE, session_id=session_id, format_name=NAME, file=path.name)
        model = item.value.get("model")
        policy = model if isinstance(model, str) and model else UNKNOWN_POLICY
        chat = Chat(draft, file=path.name, line=item.line, where=where, policy=policy)
        yield from _refusals(chat, rows, item.value, session_id)
        yield from draft.events(item.line)


def _refusals(chat: Chat, rows: list[Any], entry: dict[str, Any], session_id: str) -> Iterator[RefusedRow]:
    try:
        chat.tools = _tools(entry.get("tools"))
    except Unreadable as err:
        yield chat.refused(f": {err}", entry.get("tools"))
    system = entry.get("system")
    if isinstance(system, str) and system:
        chat.sent.append({"role": "system", "content": system})
    yield from _take(chat, rows, "row")
    if _is_pair(entry):
        for name, verdict in (("chosen", 1.0), ("rejected", 0.0)):
            branch = chat.branch()
            branch.group = content_id("group", SOURCE, session_id)
            before = branch.turn
            yield from _take(branch, [entry[name]], f"`{name}`")
            if branch.turn != before:
                branch.judge(verdict, name)
    label = entry.get("label", entry.get("kto_tag"))
    if isinstance(label, bool):
        try:
            chat.judge(float(label), "label")
        except Unreadable as err:
            yield chat.refused(f": {err}", label)


def _take(chat: Chat, rows: list[Any], what: str) -> Iterator[RefusedRow]:
    for index, row in enumerate(rows):
        try:
            message = _message(row)
        except Unreadable as err:
            chat.lose_turn()
            yield chat.refused(f", {what} {index}: {err}", row)
            continue
        try:
            chat.take_one(message)
        except Unreadable as err:
            yield chat.refused(f", {what} {index}: {err}", row)


def _message(row: Any) -> Message:
    if not isinstance(row, dict):
        raise Unreadable(f"is a JSON {json_type(row)}, not an object")
    name, value = row.get("from"), row.get("value")
    role = _ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        raise Unreadable(f"from {name!r} is none of {', '.join(sorted(_ROLES))}")
    if name == "function_call":
        return {"role": role, "content": None, "tool_calls": _calls(value)}
    if role == "user" and isinstance(value, str) and _TOOL_RESPONSES.fullmatch(value):
        role = "tool"
    return {"role": role, "content": value}


def _calls(value: Any) -> list[dict[str, Any]]:
    try:
        calls = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as err:
        raise Unreadable(f"the function call is not JSON: {err}") from err
    calls = calls if isinstance(calls, list) else [calls]
    if not calls or not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        raise Unreadable("the function call is neither an object with a `name` nor a list of such")
    return [
        {"type": "function", "function": {"name": call["name"], "arguments": raw_arguments(call.get("arguments"))}}
        for call in calls
    ]


def _tools(tools: Any) -> list[dict[str, Any]]:
    if isinstance(tools, str) and tools.strip():
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError) as err:
            raise Unreadable(f"`tools` is not JSON: {err}") from err
    tools = tools or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise Unreadable("`tools` is not a list of objects")
    check_storable(tools)
    return tools


def _rows(entry: dict[str, Any]) -> list[Any] | None:
    return next((entry[name] for name in _LISTS if isinstance(entry.get(name), list)), None)


def _is_pair(entry: dict[str, Any]) -> bool:
    return isinstance(entry.get("chosen"), dict) and isinstance(entry.get("rejected"), dict)


def _entry(entry: Any) -> list[Any]:
    if not isinstance(entry, dict):
        raise Unreadable(f"is a JSON {json_type(entry)}, not an object")
    rows = _rows(entry)
    if rows is None:
        raise Unreadable("has no list `conversations`")
    answers = [row for row in rows if isinstance(row, dict) and _answers(row.get("from"))]
    if not answers and not _is_pair(entry):
        raise Unreadable("has no row from gpt, so there is no turn")
    check_storable(entry)
    return rows


def _answers(name: Any) -> bool:
    return isinstance(name, str) and _ROLES.get(name) == "assistant"
