"""The event stream of an agent session that a server runs, as LangSmith's SDK records it: rows [name, payload].

- Session: the id that `...sessions.create` or the latest `...events.send` before a row names.
- Turn: the agent's events (`agent.message`, `agent.thinking`, `agent.tool_use` and its kin) from a
  `span.model_request_start` to its end; where the stream has no such spans, those between two answers to the agent.
- Next state: a tool's result (`user.custom_tool_result`, `agent.tool_result`, `agent.mcp_tool_result`), of the latest
  turn that made the call it names; and the first `user.message` after a turn (`user_reply`).
- The request: the agent's system prompt and tools, and every message before. `sessions.create` says those; it may
  stand after rows of its session, since what it says is looked up for the whole file first.
- What was sent counts when the stream gives it back, with its id; until then it had not reached the agent. An event
  whose id repeats is read once. Usage and status events are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
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
from producers.importers.encoded import raw_arguments
from producers.importers.json_scan import Broken, Item, excerpt_of
from producers.importers.parts import shown_text

_CALLS = frozenset({"agent.tool_use", "agent.custom_tool_use", "agent.mcp_tool_use"})
_RESULTS = {
    "agent.tool_result": "tool_use_id",
    "agent.mcp_tool_result": "mcp_tool_use_id",
    "user.custom_tool_result": "custom_tool_use_id",
}
Fields = dict[str, Any]


def is_event(row: Any) -> bool:
    """Whether a row is one of these: [name, payload], the name of a call to sessions."""
    return isinstance(row, list) and len(row) == 2 and isinstance(row[0], str) and ".sessions." in row[0]


@dataclass
class _Session:
    name: str
    line: int
    header: Fields | None = None
    events: list[tuple[Fields, int]] = field(default_factory=list)
    refused: list[RefusedRow] = field(default_factory=list)


def read(items: Iterable[Item | Broken], file: str, *, source: str, format_name: str) -> Iterator[Row]:
    """The events of each session in the stream. The line of a turn is that of its first event."""
    sessions: dict[str, _Session] = {}
    current = _Session("", 1)
    seen: set[str] = set()
    for item in items:
        try:
            if isinstance(item, Broken):
                raise Unreadable(item.reason)
            if not is_event(item.value):
                raise Unreadable("is no event of a session, a list [name, payload]")
            check_storable(item.value)
            named = _session_of(item.value)
            if named is not None and named != current.name:
                if named not in sessions:
                    sessions[named] = _named(current, named, item.line)
                current = sessions[named]
            _take(current, item, seen)
        except Unreadable as err:
            excerpt = item.excerpt if isinstance(item, Broken) else excerpt_of(item.value)
            yield RefusedRow(file, item.line, str(err), excerpt)
    for session in list(sessions.values()) or [current]:
        yield from _rows(session, file, source, format_name)


def _named(before: _Session, name: str, line: int) -> _Session:
    """The session that a row names first. Events that came before any name are its own."""
    if before.name:
        return _Session(name, line)
    before.name = name
    return before


def _session_of(row: list[Any]) -> str | None:
    name, payload = row
    if name.endswith(".sessions.create"):
        named = payload.get("id") if isinstance(payload, dict) else None
    elif name.endswith(".events.send"):
        named = payload[0] if isinstance(payload, list) and payload else None
    else:
        return None
    return named if isinstance(named, str) and named else None


def _take(session: _Session, item: Item, seen: set[str]) -> None:
    name, payload = item.value
    if name.endswith(".sessions.create"):
        session.header = payload if isinstance(payload, dict) else None
    elif name.endswith((".events.stream", ".events.list")):
        for event in payload if isinstance(payload, list) else [payload]:
            if not isinstance(event, dict) or not isinstance(event.get("type"), str):
                raise Unreadable("an event of the stream has no `type`")
            key = event.get("id")
            if isinstance(key, str):
                if key in seen:
                    continue
                seen.add(key)
            session.events.append((event, item.line))


def _rows(session: _Session, file: str, source: str, format_name: str) -> Iterator[Row]:
    header = session.header or {}
    agent = header.get("agent")
    agent = agent if isinstance(agent, dict) else {}
    session_id = session_id_of(source, [session.name, agent, [event for event, _ in session.events]])
    draft = SessionDraft(source=source, session_id=session_id, format_name=format_name, file=file)
    model = agent.get("model")
    model = model.get("id") if isinstance(model, dict) else model
    policy = model if isinstance(model, str) and model else UNKNOWN_POLICY
    tools = agent.get("tools")
    tools = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    chat = Chat(draft, file=file, line=session.line, where="", policy=policy, tools=tools)
    if isinstance(agent.get("system"), str) and agent["system"]:
        chat.sent.append({"role": "system", "content": agent["system"]})
    stream = _Stream(chat)
    for event, line in session.events:
        yield from stream.take(event, line)
    yield from stream.end_turn()
    if not draft.turns:
        yield RefusedRow(file, session.line, "the stream has no answer of the agent, so there is no turn", "")
    last = session.events[-1][1] if session.events else session.line
    yield from draft.events(last)


class _Stream:
    """Events of one session, gathered into messages."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat
        self.said: Message | None = None
        self.line = 1

    def take(self, event: Fields, line: int) -> Iterator[RefusedRow]:
        kind = event["type"]
        try:
            if kind in ("agent.message", "agent.thinking") or kind in _CALLS:
                self._say(event, line)
            elif kind in ("span.model_request_start", "span.model_request_end"):
                yield from self.end_turn()
            elif kind in _RESULTS or kind == "user.message":
                yield from self.end_turn()
                self.chat.line = line
                self.chat.take_one(_answer(event))
        except Unreadable as err:
            if not kind.startswith("user.") and kind not in _RESULTS:
                self.said = None
                self.chat.lose_turn()
            yield RefusedRow(self.chat.file, line, f"{kind}: {err}", excerpt_of(event))

    def end_turn(self) -> Iterator[RefusedRow]:
        """What the agent said so far is a turn."""
        if self.said is None:
            return
        message, self.said = self.said, None
        self.chat.line = self.line
        try:
            self.chat.take_one(message)
        except Unreadable as err:
            yield RefusedRow(self.chat.file, self.line, str(err), excerpt_of(message))

    def _say(self, event: Fields, line: int) -> None:
        if self.said is None:
            self.said, self.line = {"role": "assistant", "content": None}, line
        if event["type"] == "agent.message":
            text = shown_text(event.get("content"))
            before = self.said["content"]
            self.said["content"] = text if before is None else f"{before}\n{text}"
        elif event["type"] in _CALLS:
            name, key = event.get("name"), event.get("id")
            if not isinstance(name, str) or not isinstance(key, str):
                raise Unreadable("a tool call without `name` or `id`")
            call = {"name": name, "arguments": raw_arguments(event.get("input"))}
            self.said.setdefault("tool_calls", []).append({"id": key, "type": "function", "function": call})


def _answer(event: Fields) -> Message:
    if event["type"] == "user.message":
        return {"role": "user", "content": event.get("content")}
    content = event.get("content")
    name = event.get(_RESULTS[event["type"]])
    if not isinstance(name, str):
        raise Unreadable(f"has no `{_RESULTS[event['type']]}`")
    return {"role": "tool", "tool_call_id": name, "content": content if content not in (None, []) else ""}
