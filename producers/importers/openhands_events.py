"""OpenHands events of the agent SDK: JSON lines (or a JSON list), one event a row, told by `kind`.

What is read, how turns and next states are made and what is refused: docs/importers/openhands_events.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from producers.importers.answers import finish_reason_of, when
from producers.importers.base import UNKNOWN_POLICY, RefusedRow, Row, Unreadable, session_id_of
from producers.importers.content import content_text, text_field
from producers.importers.detect import Head, head_of
from producers.importers.json_scan import Broken, Item, excerpt_of, read_text, scan_list
from producers.importers.jsonl import BrokenLine, rows_of, split_rows, values_of
from producers.importers.openhands_parts import (
    exit_code_of,
    model_of,
    observed_kind,
    observed_text,
    response_of,
    tools_of,
)
from producers.importers.place import Place
from producers.importers.remembered import Remembered
from producers.importers.transcript import Transcript
from schemas.events import Response

NAME = "openhands-events"
SOURCE = "hindstream/import/openhands-events"


def sniff(head: Head) -> bool:
    """See `producers.importers.base.Importer.sniff`: events with `kind` and `source`."""
    rows = head.value if isinstance(head.value, list) else [head.object, *head.lines]
    return any(isinstance(row, dict) and _is_ours(row) for row in rows)


def read(path: Path) -> Iterator[Row]:
    """See `producers.importers.base.Importer.read`. The line of a turn is that of its first event."""
    listed = isinstance(head_of(path).value, list)
    rows, refused = split_rows(path.name, scan_list(read_text(path)) if listed else rows_of(path))
    session_id = session_id_of(SOURCE, values_of(rows))
    transcript = Transcript(source=SOURCE, session_id=session_id, format_name=NAME, file=path.name)
    refused += _Events(rows, transcript, path.name).take()
    if not transcript.turns and not refused:
        refused = [RefusedRow(path.name, 1, "the file has no event of an answer, so there is no turn", "")]
    yield from sorted(refused, key=lambda row: row.line)
    yield from transcript.events(next((row.line for row in rows if isinstance(row, Item)), 1))


def _is_ours(row: dict[str, Any]) -> bool:
    kind = row.get("kind")
    known = isinstance(kind, str) and (kind.endswith(("Event", "Observation")) or kind.startswith("Condensation"))
    return known and "source" in row and "timestamp" in row


class _Events:
    """One conversation, read event by event."""

    def __init__(self, rows: list[Item | Broken], transcript: Transcript, file: str) -> None:
        self.rows, self.transcript, self.file = rows, transcript, file
        self.refused: list[RefusedRow] = []
        self.at = Place()
        self.remembered = Remembered()
        self.tools: list[dict[str, Any]] = []
        self.models = [(index, model) for index, row in self._events() if (model := model_of(row)) is not None]
        self.broken = [row for row in rows if isinstance(row, BrokenLine)]
        self.groups = self._groups()
        self.actions: dict[str, int] = {}
        """Id of an action event -> its turn."""
        self.waiting: dict[str, list[int]] = {}
        """Id of an action event -> observations that stand before it in the file."""
        # Ids of the action events still to come.
        self.later = {own for _, row in self._events() if (own := self._action_id(row)) is not None}

    def take(self) -> list[RefusedRow]:
        """Read everything; returns the rows refused."""
        for index, row in enumerate(self.rows):
            if isinstance(row, Broken):
                self.at = self.transcript.lose(self.at)
                continue
            self._take(index, row.value)
        return self.refused

    def _events(self) -> Iterator[tuple[int, dict[str, Any]]]:
        return ((index, row.value) for index, row in enumerate(self.rows) if isinstance(row, Item))

    def _action_id(self, row: dict[str, Any]) -> str | None:
        return text_field(row, "id") if row.get("kind") == "ActionEvent" else None

    def _groups(self) -> dict[int, list[int]]:
        """First action event of an answer -> all of them: parallel calls share `llm_response_id`."""
        groups: dict[int, list[int]] = {}
        latest: tuple[str, int] | None = None
        for index, row in self._events():
            if row.get("kind") == "MessageEvent":
                latest = None
            elif row.get("kind") == "ActionEvent":
                response = text_field(row, "llm_response_id")
                if latest is not None and response == latest[0]:
                    groups[latest[1]].append(index)
                    continue
                groups[index] = [index]
                latest = None if response is None else (response, index)
        return groups

    def _take(self, index: int, row: dict[str, Any]) -> None:
        try:
            self._event(index, row)
        except Unreadable as err:
            self.refused.append(RefusedRow(self.file, self.rows[index].line, str(err), excerpt_of(row)))
            if row.get("kind") in ("ActionEvent", "MessageEvent"):
                self.at = self.transcript.lose(self.at)

    def _event(self, index: int, row: dict[str, Any]) -> None:
        kind = row.get("kind")
        if kind == "ActionEvent":
            if index in self.groups:
                self._answer(index, [self._value(member) for member in self.groups[index]])
        elif kind == "MessageEvent":
            self._message(index, row)
        elif kind in ("ObservationEvent", "UserRejectObservation", "AgentErrorEvent"):
            self._observation(index, row)
        elif kind == "SystemPromptEvent":
            self.tools = tools_of(row.get("tools"))
            self._say(row, "system", content_text(_parts(row.get("system_prompt")), "`system_prompt`"))
        elif kind == "Condensation":
            gone = row.get("forgotten_event_ids")
            summary, offset = text_field(row, "summary"), row.get("summary_offset")
            ids = [one for one in gone if isinstance(one, str)] if isinstance(gone, list) else []
            self.at = self.transcript.compact(self.at, self.remembered.forget(ids, summary, offset))
        elif kind == "InterruptEvent":
            if not (self.at.answered and self.transcript.called(self.at)):
                self.at = self.transcript.interrupt(self.at)
        elif kind == "ConversationErrorEvent":
            self.at = self.transcript.lose(self.at)  # the policy was asked and did not answer
        elif not isinstance(kind, str):
            raise Unreadable("the event has no `kind`")

    def _answer(self, index: int, events: list[dict[str, Any]]) -> None:
        ids = [own for event in events if (own := text_field(event, "id")) is not None]
        self.later.difference_update(ids)
        try:
            self._whole(text_field(events[0], "llm_response_id"))
            self._turn(index, events, ids, response_of(events))
        finally:
            for observation in [one for own in ids for one in self.waiting.pop(own, [])]:
                self._take(observation, self._value(observation))

    def _turn(self, index: int, events: list[dict[str, Any]], ids: list[str], response: Response) -> None:
        self.at = self.transcript.answer(
            self.at,
            response,
            finish_reason=finish_reason_of(None, response, {}),
            policy=self._policy(index),
            line=self.rows[index].line,
            tools=self.tools,
            ended_at=when(events[-1]),
        )
        self.remembered.add(ids, self.at.message)
        self.actions.update(dict.fromkeys(ids, self.transcript.turns - 1))

    def _whole(self, response_id: str | None) -> None:
        for row in self.broken if response_id else []:
            if f'"{response_id}"' in row.text:
                raise Unreadable(f"an event of this answer cannot be read, at line {row.line}")

    def _message(self, index: int, row: dict[str, Any]) -> None:
        message = row.get("llm_message")
        if not isinstance(message, dict):
            raise Unreadable("`llm_message` is no object")
        if row.get("source") == "agent":
            own = text_field(row, "id")
            self._turn(index, [row], [own] if own else [], response_of([row]))
            return
        text = content_text(message.get("content"), "`content`")
        extended = row.get("extended_content")
        whole = "\n".join([text, content_text(extended, "`extended_content`")]) if extended else text
        if row.get("source") != "user" or row.get("sender") or not text.strip():
            self._say(row, "user", whole)
            return
        sent = {"role": "user", "content": whole}
        self.at = self.transcript.reply(self.at, text, line=self.rows[index].line, message=sent, observed_at=when(row))
        self.remembered.add([text_field(row, "id") or index], sent)

    def _observation(self, index: int, row: dict[str, Any]) -> None:
        action = text_field(row, "action_id")
        if action is not None and action not in self.actions:
            if action not in self.later:
                self.at = self.transcript.lose(self.at)
                raise Unreadable(f"it is about the event {action!r}, which is not in the file or could not be read")
            self.waiting.setdefault(action, []).append(index)
            return
        rejected = row.get("kind") == "UserRejectObservation" and row.get("rejection_source") != "hook"
        text = observed_text(row)
        at = self.transcript.result(
            self.at,
            text_field(row, "tool_call_id"),
            text,
            line=self.rows[index].line,
            kind="user_reply" if rejected else observed_kind(row),
            exit_code=exit_code_of(row),
            observed_at=when(row),
            turn=None if action is None else self.actions[action],
        )
        if at is not self.at:
            self.remembered.add([text_field(row, "id") or index], at.message)
        self.at = at

    def _say(self, row: dict[str, Any], role: str, text: str) -> None:
        message = {"role": role, "content": text}
        self.at = self.transcript.say(self.at, message)
        self.remembered.add([text_field(row, "id") or text], message)

    def _policy(self, index: int) -> str:
        """The model that the state named last before this event, else the first one named after it."""
        before = bisect_left(self.models, (index, ""))
        return self.models[max(before - 1, 0)][1] if self.models else UNKNOWN_POLICY

    def _value(self, index: int) -> dict[str, Any]:
        item = self.rows[index]
        assert isinstance(item, Item)
        value: dict[str, Any] = item.value
        return value


def _parts(content: Any) -> Any:
    return [content] if isinstance(content, dict) else content
