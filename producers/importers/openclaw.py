"""OpenClaw and pi sessions: JSON lines with one message a row, from version 2 on a tree by `parentId`.

What is read, how turns and next states are made and what is refused: docs/importers/openclaw.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from producers.importers.answers import call_of, finish_reason_of, joined, policy_of, when
from producers.importers.base import RefusedRow, Row, Unreadable, session_id_of
from producers.importers.content import content_text, text_field
from producers.importers.detect import Head
from producers.importers.json_scan import Item, excerpt_of, json_type
from producers.importers.jsonl import rows_of, split_rows, values_of
from producers.importers.links import Links
from producers.importers.openclaw_people import said_by_person
from producers.importers.place import Place
from producers.importers.transcript import Transcript
from schemas.digests import digest_of
from schemas.events import FinishReason, Response, ToolCall
from schemas.text import sanitise

NAME = "openclaw"
SOURCE = "hindstream/import/openclaw"

_STOPS: dict[str, FinishReason] = {
    "stop": "stop",
    "toolUse": "tool_calls",
    "length": "length",
    "aborted": "aborted",
    "error": "error",
}
_MACHINES = ("custom", "hookMessage", "compactionSummary", "branchSummary")
"""Roles of messages that extensions and pi itself put into the context."""
_OWN_PROVIDER = "openclaw"
"""The provider of assistant messages in which OpenClaw notes what it delivered: copies, which the policy never gave."""


def sniff(head: Head) -> bool:
    """See `producers.importers.base.Importer.sniff`: a session header, or rows of type message around a `message` with
    a role."""
    return any(isinstance(row, dict) and _is_ours(row) for row in [head.object, *head.lines])


def read(path: Path) -> Iterator[Row]:
    """See `producers.importers.base.Importer.read`. The line of a turn is that of its message."""
    rows, refused = split_rows(path.name, rows_of(path))
    session_id = session_id_of(SOURCE, values_of(rows))
    transcript = Transcript(source=SOURCE, session_id=session_id, format_name=NAME, file=path.name)
    session = _Session(
        Links(
            rows,
            own=lambda row: None if row.get("type") == "session" else text_field(row, "id"),
            above=lambda row: text_field(row, "parentId"),
            speaks=lambda row: row.get("type") != "session",
        ),
        transcript,
        path.name,
        [row.line for row in rows],
    )
    refused += session.take()
    if not transcript.turns and not refused:
        refused = [RefusedRow(path.name, 1, "the file has no message of role assistant, so there is no turn", "")]
    yield from sorted(refused, key=lambda row: row.line)
    yield from transcript.events(next((row.line for row in rows if isinstance(row, Item)), 1))


def _is_ours(row: dict[str, Any]) -> bool:
    if row.get("type") == "session":
        return "cwd" in row and "id" in row
    message = row.get("message")
    return row.get("type") == "message" and isinstance(message, dict) and isinstance(message.get("role"), str)


class _Session:
    """One session, read row by row."""

    def __init__(self, links: Links, transcript: Transcript, file: str, lines: list[int]) -> None:
        self.links, self.transcript, self.file, self.lines = links, transcript, file, lines
        self.refused: list[RefusedRow] = []
        self.places: dict[int | None, Place] = {None: Place()}
        self.positions: dict[str, int] = {}
        self.answers: dict[str, Place] = {}

    def take(self) -> list[RefusedRow]:
        """Read everything; returns the rows refused."""
        for index in self.links.repeated:
            self._refuse(index, "another row has its id, with other content")
        for index in self.links.circular:
            self._refuse(index, "its chain of `parentId` runs in a circle")
        for index in self.links.in_order():
            row = self.links.value(index)
            if (own := text_field(row, "id")) is not None:
                self.positions[own] = index
            at = self.places[self.links.parents[index]]
            if index in self.links.gaps:
                at = self.transcript.lose(at)
            try:
                at = self._row(index, row, at)
            except Unreadable as err:
                self._refuse(index, str(err))
                at = self.transcript.lose(at)
            self.places[index] = at
        return self.refused

    def _row(self, index: int, row: dict[str, Any], at: Place) -> Place:
        kind = row.get("type")
        if kind == "message":
            return self._message(index, row, at)
        if kind == "compaction":
            return self._compaction(index, row, at)
        if kind == "branch_summary" and row.get("summary"):
            return self.transcript.say(at, _user(content_text(row["summary"], "`summary`")))
        if kind == "custom_message":
            return self.transcript.say(at, _user(content_text(row.get("content"), "`content`")))
        if not isinstance(kind, str):
            raise Unreadable("the row has no `type`")
        return at

    def _message(self, index: int, row: dict[str, Any], at: Place) -> Place:
        message = row.get("message")
        if not isinstance(message, dict):
            raise Unreadable(f"`message` is a JSON {json_type(message)}, not an object")
        role = message.get("role")
        if role == "assistant":
            return self._answer(index, row, message, at)
        if role == "bashExecution":
            return self._command(message, at)
        text = content_text(message.get("summary", message.get("content")), "`content`")
        if role == "user":
            said = said_by_person(message, text)
            if not said:
                return self.transcript.say(at, _user(text))
            return self.transcript.reply(at, said, line=self.lines[index], message=_user(text), observed_at=when(row))
        if role == "toolResult":
            call_id = message.get("toolCallId")
            return self.transcript.result(
                at,
                call_id if isinstance(call_id, str) else None,
                text,
                line=self.lines[index],
                observed_at=when(row),
            )
        if role in _MACHINES:
            return self.transcript.say(at, _user(text))
        raise Unreadable(f"role {role!r} is none of user, assistant, toolResult, bashExecution, custom")

    def _answer(self, index: int, row: dict[str, Any], message: dict[str, Any], at: Place) -> Place:
        if message.get("provider") == _OWN_PROVIDER:
            return at
        response = _response(message)
        # The same answer appended once more, perhaps under another parent, is one answer.
        key = text_field(message, "responseId") or ("timestamp" in message and digest_of(sanitise(message)[0])) or ""
        if key in self.answers and self.answers[key].message is not None:
            return self.transcript.repeat(at, self.answers[key])
        place = self.transcript.answer(
            at,
            response,
            finish_reason=finish_reason_of(message.get("stopReason"), response, _STOPS),
            policy=policy_of(message.get("model")),
            line=self.lines[index],
            ended_at=when(row),
        )
        if key:
            self.answers[key] = place
        return place

    def _command(self, message: dict[str, Any], at: Place) -> Place:
        """A command that the person ran with `!`: the policy reads of it, and it judges nothing."""
        if message.get("excludeFromContext") is True:
            return at
        command, output = (content_text(message.get(name), f"`{name}`") for name in ("command", "output"))
        return self.transcript.say(at, _user(f"$ {command}\n{output}"))

    def _compaction(self, index: int, row: dict[str, Any], at: Place) -> Place:
        """The summary, then what was kept: from `firstKeptEntryId`, in version 1 from the row at
        `firstKeptEntryIndex`."""
        kept: int | None = None
        if (named := text_field(row, "firstKeptEntryId")) is not None:
            kept = self.positions.get(named)
        elif isinstance(counted := row.get("firstKeptEntryIndex"), int):
            kept = counted if counted in self.places else None
        messages = [_user(content_text(row.get("summary"), "`summary`"))]
        if kept is not None and self._is_above(kept, index):
            messages += at.said_since(self.places[self.links.parents[kept]])
        return self.transcript.compact(at, messages)

    def _is_above(self, upper: int, index: int) -> bool:
        at: int | None = index
        while at is not None and at != upper:
            at = self.links.parents[at]
        return at == upper

    def _refuse(self, index: int, reason: str) -> None:
        excerpt = excerpt_of(self.links.value(index))
        self.refused.append(RefusedRow(self.file, self.lines[index], reason, excerpt))


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _response(message: dict[str, Any]) -> Response:
    content = message.get("content")
    if isinstance(content, str):
        return Response(content=content)
    if not isinstance(content, list):
        raise Unreadable(f"`content` is a JSON {json_type(content)}, not text or a list of parts")
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text":
            texts.append(content_text([part], "`content`"))
        elif kind == "thinking":
            thoughts.append(content_text(part.get("thinking"), "`thinking`"))
        elif kind == "toolCall":
            calls.append(call_of(part.get("id"), part.get("name"), part.get("arguments", {})))
        else:
            raise Unreadable(f"the answer has a part of type {kind!r}")
    return Response(content=joined(texts), reasoning=joined(thoughts), tool_calls=calls)
