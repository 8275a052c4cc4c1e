"""Codex rollouts: JSON lines with one item of the conversation a row, and events that repeat them.

What is read, how turns and next states are made and what is refused: docs/importers/codex.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from producers.importers.answers import finish_reason_of, policy_of, when
from producers.importers.base import RefusedRow, Row, Unreadable, session_id_of
from producers.importers.codex_items import (
    Pieces,
    is_answer,
    is_message,
    is_output,
    messages_of,
    output_text,
    typed,
)
from producers.importers.codex_rows import exit_codes_of, instructions_of, model_of, of_subagent, payload_of
from producers.importers.content import content_text, text_field
from producers.importers.detect import Head
from producers.importers.json_scan import Broken, Item, excerpt_of
from producers.importers.jsonl import BrokenLine, rows_of, split_rows, values_of
from producers.importers.place import Place
from producers.importers.transcript import Transcript
from schemas.events import TurnKind

NAME = "codex"
SOURCE = "hindstream/import/codex"

_ENVELOPES = ("session_meta", "response_item", "turn_context", "compacted", "event_msg")


def sniff(head: Head) -> bool:
    """See `producers.importers.base.Importer.sniff`: rows {timestamp, type, payload}, or of the first version the
    header with `instructions` and bare items after it."""
    return any(isinstance(row, dict) and _is_ours(row) for row in [head.object, *head.lines])


def read(path: Path) -> Iterator[Row]:
    """See `producers.importers.base.Importer.read`. The line of a turn is that of its first item."""
    rows, refused = split_rows(path.name, rows_of(path))
    session_id = session_id_of(SOURCE, values_of(rows))
    transcript = Transcript(source=SOURCE, session_id=session_id, format_name=NAME, file=path.name)
    refused += _Rollout(values_of(rows), transcript, path.name).take(rows)
    if not transcript.turns and not refused:
        refused = [RefusedRow(path.name, 1, "the file has no item of an answer, so there is no turn", "")]
    yield from sorted(refused, key=lambda row: row.line)
    yield from transcript.events(next((row.line for row in rows if isinstance(row, Item)), 1))


def _is_ours(row: dict[str, Any]) -> bool:
    if row.get("type") in _ENVELOPES and isinstance(row.get("payload"), dict):
        return True
    return row.get("record_type") == "state" or ("instructions" in row and "git" in row and "id" in row)


class _Rollout:
    """One rollout, read item by item. Items follow each other in the order of the file; a rollback starts a branch."""

    def __init__(self, rows: list[dict[str, Any]], transcript: Transcript, file: str) -> None:
        self.transcript, self.file = transcript, file
        self.refused: list[RefusedRow] = []
        self.pieces: Pieces | None = None
        self.cut: int | None = None
        """Line of an unreadable row that may belong to the answer which comes next."""
        metas = [payload_of(row) for row in rows if row.get("type") == "session_meta"]
        # Wherever these rows stand: the header may come after the first items, the model be named after its answer.
        self.kind: TurnKind = "side" if any(of_subagent(meta) for meta in metas) else "main"
        self.model = next((m for row in rows if (m := model_of(row)) is not None), None)
        self.exit_codes = exit_codes_of(rows)
        instructions = next((text for meta in metas if (text := instructions_of(meta))), None)
        self.start = [] if instructions is None else [{"role": "system", "content": instructions}]
        self.at = Place()
        for message in self.start:
            self.at = self.transcript.say(self.at, message)
        self.aborted = False
        self.asked: list[Place] = []
        """Where a person began to speak, for rollbacks."""

    def take(self, rows: list[Item | Broken]) -> list[RefusedRow]:
        """Read everything; returns the rows refused."""
        for row in rows:
            if isinstance(row, Broken):
                self._broken(row)
                continue
            try:
                self._row(row.value, row.line)
            except Unreadable as err:
                self._end_answer()
                self.at = self.transcript.lose(self.at)
                self.refused.append(RefusedRow(self.file, row.line, str(err), excerpt_of(row.value)))
        self._end_answer()
        return self.refused

    def _broken(self, row: Broken) -> None:
        """An unreadable row costs the answer around it, unless it shows that it is something else."""
        text = row.text.replace(" ", "") if isinstance(row, BrokenLine) else ""
        if any(f'"{name}"' in text for name in ("event_msg", "turn_context", "session_meta")):
            return
        if '_output"' in text or '"role":"user"' in text or '"role":"developer"' in text:
            self._end_answer()
        else:
            if self.pieces is not None:
                self.pieces.fault = f"a row of the answer cannot be read, at line {row.line}"
            self._end_answer()
            self.cut = row.line
        self.at = self.transcript.lose(self.at)

    def _row(self, row: dict[str, Any], line: int) -> None:
        kind = row.get("type")
        if kind == "event_msg":
            self._event(payload_of(row))
        elif kind == "turn_context":
            self._end_answer()
            self.model = model_of(row) or self.model
        elif kind == "compacted":
            self._end_answer()
            self._compacted(payload_of(row))
        elif kind == "response_item":
            if not isinstance(row.get("payload"), dict):
                raise Unreadable("`payload` is no object")
            self._item(row["payload"], row, line)
        elif isinstance(kind, str) and kind not in _ENVELOPES:
            self._item(row, row, line)  # the first version had no envelopes

    def _item(self, item: dict[str, Any], row: dict[str, Any], line: int) -> None:
        if is_answer(item):
            self.aborted = False
            self._part(item, row, line)
            return
        self._end_answer()
        self.cut = None
        if is_output(item):
            call_id = text_field(item, "call_id")
            self.at = self.transcript.result(
                self.at,
                call_id,
                output_text(item),
                line=line,
                exit_code=self.exit_codes.get(call_id or ""),
                observed_at=when(row),
            )
        elif is_message(item, "user"):
            self._user(item, row, line)
        elif is_message(item, "developer", "system"):
            text = content_text(item.get("content"), "`content`")
            self.at = self.transcript.say(self.at, {"role": "system", "content": text})
        elif item.get("type", "message") == "message":
            raise Unreadable(f"role {item.get('role')!r} is none of user, assistant, developer, system")

    def _part(self, item: dict[str, Any], row: dict[str, Any], line: int) -> None:
        if self.pieces is not None and self.pieces.makes_again(item):
            self._end_answer()
        if self.pieces is None:
            self.pieces = Pieces(line)
            if self.cut is not None:
                self.pieces.fault = f"a row of the answer cannot be read, at line {self.cut}"
        try:
            self.pieces.add(item)
        except Unreadable as err:
            self.pieces.fault = f"a part of the answer is not readable, at line {line}: {err}"
        self.pieces.ended_at = when(row) or self.pieces.ended_at

    def _end_answer(self) -> None:
        """The answer whose items came is whole: a turn, or refused."""
        pieces, self.pieces = self.pieces, None
        if pieces is None:
            return
        if pieces.fault is not None:
            self.refused.append(RefusedRow(self.file, pieces.line, pieces.fault, ""))
            self.at = self.transcript.lose(self.at)
            return
        response = pieces.response()
        self.at = self.transcript.answer(
            self.at,
            response,
            finish_reason=finish_reason_of(None, response, {}),
            policy=policy_of(self.model),
            line=pieces.line,
            kind=self.kind,
            ended_at=pieces.ended_at,
        )

    def _user(self, item: dict[str, Any], row: dict[str, Any], line: int) -> None:
        content = item.get("content")
        text = content_text(content, "`content`")
        if text.startswith("<turn_aborted>"):
            self._aborted()
        parts = content if isinstance(content, list) else [content]
        said = "\n".join(human for part in parts if (human := typed(content_text([part], "`content`"))))
        message = {"role": "user", "content": text}
        if not said or self.kind == "side":
            self.at = self.transcript.say(self.at, message)
            return
        self.aborted = False
        self.asked.append(self.at)
        self.at = self.transcript.reply(self.at, said, line=line, message=message, observed_at=when(row))

    def _event(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        if kind == "token_count" and isinstance(event.get("info"), dict):
            self._end_answer()  # counted when a response is complete, before its tools have run
        elif kind in ("task_started", "task_complete", "turn_started", "turn_complete"):
            self._end_answer()
        elif kind == "turn_aborted":
            self._end_answer()
            self._aborted()
        elif kind == "thread_rolled_back":
            self._end_answer()
            turns = event.get("num_turns")
            if isinstance(turns, int) and turns > 0:
                self.asked, dropped = self.asked[:-turns], self.asked[-turns:]
                self.at = dropped[0] if dropped else self.at

    def _aborted(self) -> None:
        """A call that was stopped leaves a whole answer behind; a text was cut off. It is told twice, as an event and
        in the conversation."""
        stopped = self.at.answered and self.transcript.called(self.at)
        if not self.aborted and not stopped:
            self.at = self.transcript.interrupt(self.at)
        self.aborted = True

    def _compacted(self, payload: dict[str, Any]) -> None:
        if payload.get("replacement_history") is not None:
            messages = messages_of(payload["replacement_history"])
        else:
            messages = [{"role": "user", "content": content_text(payload.get("message"), "`message`")}]
        self.at = self.transcript.compact(self.at, self.start + messages)
