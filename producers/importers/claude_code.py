"""Claude Code sessions: JSON lines with one content block a row, a tree by `parentUuid`.

What is read, how turns and next states are made and what is refused: docs/importers/claude_code.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from producers.importers.answers import finish_reason_of, policy_of, when
from producers.importers.base import RefusedRow, Row, Unreadable, session_id_of
from producers.importers.claude_code_answers import message_of, response_of
from producers.importers.claude_code_tree import Tree, Unit, has_results, message_id, queued_text
from producers.importers.content import content_text, spoken
from producers.importers.detect import Head, head_of
from producers.importers.json_scan import Broken, Item, excerpt_of, read_text, scan_object
from producers.importers.jsonl import BrokenLine, rows_of, split_rows, values_of
from producers.importers.place import Place
from producers.importers.transcript import Transcript
from schemas.events import FinishReason, Response

NAME = "claude-code"
SOURCE = "hindstream/import/claude-code"

_STOPS: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "refusal": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}
_MACHINE = (
    "system-reminder",
    "command-name",
    "command-message",
    "command-args",
    "command-contents",
    "local-command-caveat",
    "local-command-stdout",
    "local-command-stderr",
    "bash-input",
    "bash-stdout",
    "bash-stderr",
    "task-notification",
    "user-memory-input",
    "ide_opened_file",
    "ide_selection",
)
_INTERRUPTED = "[Request interrupted by user"
_CONTINUED = "This session is being continued from a previous conversation"
_SYNTHETIC = "<synthetic>"
"""The `model` of rows that Claude Code wrote in the policy's place."""


def sniff(head: Head) -> bool:
    """See `producers.importers.base.Importer.sniff`: rows of type user or assistant around a `message`, with Claude
    Code's links, or the object with `loglines` that its web version exports."""
    if isinstance(head.value, dict) and isinstance(head.value.get("loglines"), list):
        return True
    return any(isinstance(row, dict) and _is_ours(row) for row in [head.object, *head.lines])


def read(path: Path) -> Iterator[Row]:
    """See `producers.importers.base.Importer.read`. The line of a turn is that of its first row."""
    rows, refused = split_rows(path.name, _found(path))
    session_id = session_id_of(SOURCE, values_of(rows))
    transcript = Transcript(source=SOURCE, session_id=session_id, format_name=NAME, file=path.name)
    refused += _Session(rows, transcript, path.name).take()
    if not transcript.turns and not refused:
        refused = [RefusedRow(path.name, 1, "the file has no row of type assistant, so there is no turn", "")]
    yield from sorted(refused, key=lambda row: row.line)
    yield from transcript.events(next((row.line for row in rows if isinstance(row, Item)), 1))


def _found(path: Path) -> Iterator[Item | Broken]:
    """The rows: lines, or the items of `loglines`."""
    head = head_of(path)
    if not isinstance(head.value, dict) or "loglines" not in head.value:
        yield from rows_of(path)
        return
    scanned = scan_object(read_text(path), frozenset({"loglines"}))
    yield from scanned.broken
    listed = scanned.fields.get("loglines")
    if listed is None or listed.items is None:
        yield Broken(1, "the file has no list `loglines`", "")
        return
    yield from listed.items


def _is_ours(row: dict[str, Any]) -> bool:
    if row.get("type") in ("user", "assistant") and isinstance(row.get("message"), dict):
        return any(key in row for key in ("parentUuid", "sessionId", "session_id", "uuid"))
    return "leafUuid" in row or (row.get("type") in ("queue-operation", "file-history-snapshot"))


class _Session:
    """One session, read unit by unit."""

    def __init__(self, rows: list[Item | Broken], transcript: Transcript, file: str) -> None:
        self.tree, self.transcript, self.file = Tree(rows), transcript, file
        self.value = self.tree.links.value
        self.refused: list[RefusedRow] = []
        self.places: dict[int | None, Place] = {None: Place()}
        self.answers: dict[str, list[tuple[Response, Place]]] = {}
        self.rows = rows
        self.broken = [row for row in rows if isinstance(row, BrokenLine)]

    def take(self) -> list[RefusedRow]:
        """Read everything; returns the rows refused."""
        for index in self.tree.links.repeated:
            self._refuse(index, "another row has its uuid, with other content")
        for index in self.tree.links.circular:
            self._refuse(index, "its chain of `parentUuid` runs in a circle")
        for unit in self.tree.in_order():
            at = self.places[unit.parent]
            if unit.gap:
                at = self.transcript.lose(at)
            if unit.is_answer:
                at = self._answer(unit, at)
                for index in unit.results:
                    at = self._spoken(index, unit, at)
            else:
                at = self._spoken(unit.rows[0], unit, at)
            self.places[unit.rows[0]] = at
        return self.refused

    def _answer(self, unit: Unit, at: Place) -> Place:
        first = self.value(unit.rows[0])
        key = message_id(first)
        try:
            self._whole(key)
            rows = [self.value(index) for index in unit.rows]
            response = response_of(rows)
        except Unreadable as err:
            self._refuse(unit.rows[0], str(err))
            return self.transcript.lose(at)
        for known, place in self.answers.get(key or "", []):
            if known == response:
                return self.transcript.repeat(at, place)
        last = rows[-1]
        model = message_of(first).get("model")
        stop = next((s for row in rows[::-1] if (s := message_of(row).get("stop_reason")) is not None), None)
        finish = finish_reason_of(stop, response, _STOPS)
        if any(row.get("isApiErrorMessage") is True for row in rows):
            finish = "error"
        elif model == _SYNTHETIC:
            finish = "aborted"
        place = self.transcript.answer(
            at,
            response,
            finish_reason=finish,
            policy=policy_of(model),
            line=self._line(unit.rows[0]),
            kind="side" if unit.side else "main",
            ended_at=when(last),
        )
        if key is not None:
            self.answers.setdefault(key, []).append((response, place))
        return place

    def _whole(self, key: str | None) -> None:
        """Refuse an answer of which a row could not be read."""
        for row in self.broken if key else []:
            if f'"{key}"' in row.text:
                raise Unreadable(f"the answer {key} has a row that cannot be read, at line {row.line}")

    def _spoken(self, index: int, unit: Unit, at: Place) -> Place:
        row = self.value(index)
        try:
            queued = queued_text(row)
            content = message_of(row).get("content") if queued is None else queued
            if isinstance(content, list) and has_results(row):
                return self._results(index, content, unit, at)
            text = content_text(content, "`content`")
            if row.get("isCompactSummary") is True or text.startswith(_CONTINUED):
                return self.transcript.compact(at, [{"role": "user", "content": text}])
            return self._text(index, content if isinstance(content, list) else [content], unit, at)
        except Unreadable as err:
            self._refuse(index, str(err))
            return self.transcript.lose(at)

    def _results(self, index: int, blocks: list[Any], unit: Unit, at: Place) -> Place:
        others = []
        for block in blocks:
            if not isinstance(block, dict) or block.get("type") != "tool_result":
                others.append(block)
                continue
            call_id = block.get("tool_use_id")
            try:
                at = self.transcript.result(
                    at,
                    call_id if isinstance(call_id, str) else None,
                    content_text(block.get("content"), "the tool result's `content`"),
                    line=self._line(index),
                    observed_at=when(self.value(index)),
                )
            except Unreadable as err:
                self._refuse(index, str(err))
        return self._text(index, others, unit, at) if others else at

    def _text(self, index: int, parts: list[Any], unit: Unit, at: Place) -> Place:
        """What a person or a machine said in a row of type user."""
        row = self.value(index)
        texts = [content_text([part], "`content`") for part in parts]
        interruption = next((text for text in texts if text.startswith(_INTERRUPTED)), None)
        if interruption is not None:
            # An interrupted tool leaves a whole answer behind: what the person says next is about it.
            at = at if "for tool use" in interruption else self.transcript.interrupt(at)
        whole = "\n".join(texts)
        said = "\n".join(
            human for text in texts if not text.startswith(_INTERRUPTED) and (human := spoken(text, _MACHINE))
        )
        if unit.side or not said or _by_machine(row):
            return self.transcript.say(at, {"role": "user", "content": whole}) if whole else at
        return self.transcript.reply(
            at,
            said,
            line=self._line(index),
            message={"role": "user", "content": whole},
            observed_at=when(row),
        )

    def _line(self, index: int) -> int:
        return self.rows[index].line

    def _refuse(self, index: int, reason: str) -> None:
        self.refused.append(RefusedRow(self.file, self._line(index), reason, excerpt_of(self.value(index))))


def _by_machine(row: dict[str, Any]) -> bool:
    origin = row.get("origin")
    kind = origin.get("kind") if isinstance(origin, dict) else None
    return row.get("isMeta") is True or (isinstance(kind, str) and kind != "human")
