"""OpenAI's fine-tuning files: JSON lines {messages, tools, ...}, or {input, preferred_output, non_preferred_output}.

- Session: a line. Turn: each `assistant` message; one with `weight` 0 is a side turn, recorded and not trained.
- Next state: each `tool` or `function` message (`tool_result`) and the first `user` message after a turn
  (`user_reply`). A `function` message belongs to the turn just before it.
- Preference: the two outputs are two branches from the same request, their first turns one group. The last turn of
  each has a `test_verdict`: 1.0 for the preferred, 0.0 for the other.
- Policy: `unknown`. The file says neither who wrote the answers, nor times, nor sampling parameters.

A `reference_answer`, or any other field for a grader, is not read: a judge or teacher would read the solution there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from producers.importers.base import RefusedRow, Row, SessionDraft, Unreadable, check_storable, session_id_of
from producers.importers.chat import Chat, Message
from producers.importers.detect import Head
from producers.importers.json_scan import Broken, excerpt_of, json_type
from producers.importers.jsonl import rows_of
from schemas.digests import content_id

NAME = "openai"
SOURCE = "hindstream/import/openai"

_PAIR = (("preferred_output", 1.0, "preferred"), ("non_preferred_output", 0.0, "not preferred"))


def sniff(head: Head) -> bool:
    """See `producers.importers.base.Importer.sniff`."""
    first = head.value
    if not isinstance(first, dict) or first.keys() & {"trajectory", "run_type", "conversations", "traj"}:
        return False
    if isinstance(first.get("input"), dict) and "preferred_output" in first:
        return True
    messages = first.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(messages[0], dict):
        return False
    if first.keys() & {"id", "session_id", "type"}:
        return False
    # Of a first message longer than the head, the content does not show.
    return "role" in messages[0] and ("content" in messages[0] or not head.whole)


def read(path: Path) -> Iterator[Row]:
    """See `producers.importers.base.Importer.read`."""
    first_line: dict[str, int] = {}
    for item in rows_of(path):
        if isinstance(item, Broken):
            yield RefusedRow(path.name, item.line, item.reason, item.excerpt)
            continue
        try:
            messages, tools, outputs = _example(item.value)
            session_id = session_id_of(SOURCE, item.value)
            if session_id in first_line:
                raise Unreadable(f"repeats line {first_line[session_id]} word for word, which is in")
        except Unreadable as err:
            yield RefusedRow(path.name, item.line, str(err), excerpt_of(item.value))
            continue
        first_line[session_id] = item.line
        draft = SessionDraft(source=SOURCE, session_id=session_id, format_name=NAME, file=path.name)
        chat = Chat(draft, file=path.name, line=item.line, where="", tools=tools)
        yield from _refusals(chat, messages, outputs, session_id)
        yield from draft.events(item.line)


def _refusals(chat: Chat, messages: list[Any], outputs: dict[str, list[Any]], session_id: str) -> Iterator[RefusedRow]:
    """Read all of an example into its draft; yields what is refused."""
    for refused in chat.take([_readable(message) for message in messages]):
        yield _without_comma(refused)
    for name, verdict, label in _PAIR if outputs else ():
        branch = chat.branch()
        branch.group = content_id("group", SOURCE, session_id)
        before = branch.turn
        for refused in branch.take([_readable(message) for message in outputs[name]], f"message of `{name}`"):
            yield _without_comma(refused)
        try:
            if branch.turn == before:
                raise Unreadable("no answer to judge")
            branch.judge(verdict, label)
        except Unreadable as err:
            yield chat.refused(f"`{name}`: {err}", outputs[name])


def _example(row: Any) -> tuple[list[Any], list[dict[str, Any]], dict[str, list[Any]]]:
    """Messages, tools, and the two outputs of a preference ({} where it is none)."""
    if not isinstance(row, dict):
        raise Unreadable(f"is a JSON {json_type(row)}, not an object")
    check_storable(row)
    pair = {name: row[name] for name, _, _ in _PAIR if name in row}
    body = row.get("input") if pair else row
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        raise Unreadable("has no list `input.messages`" if pair else "has no list `messages`")
    if pair and (len(pair) < len(_PAIR) or not all(isinstance(output, list) for output in pair.values())):
        raise Unreadable("has not both a list `preferred_output` and a list `non_preferred_output`")
    messages = body["messages"]
    if not pair and not any(isinstance(message, dict) and message.get("role") == "assistant" for message in messages):
        raise Unreadable("has no assistant message, so there is no turn")
    tools = body.get("tools") or body.get("functions") or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise Unreadable("`tools` is not a list of objects")
    return messages, tools, pair


def _readable(message: Any) -> Any:
    """The message with an old `function_call` as a tool call."""
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return message
    call = message.get("function_call")
    if not isinstance(call, dict) or message.get("tool_calls"):
        return message
    renamed: Message = {key: value for key, value in message.items() if key != "function_call"}
    return renamed | {"tool_calls": [{"type": "function", "function": call}]}


def _without_comma(refused: RefusedRow) -> RefusedRow:
    return RefusedRow(refused.file, refused.line, refused.reason.lstrip(", "), refused.excerpt)
