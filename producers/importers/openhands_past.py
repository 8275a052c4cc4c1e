"""An old OpenHands history, read event by event."""

from __future__ import annotations

from typing import Any

from producers.importers.answers import when
from producers.importers.base import RefusedRow, Unreadable
from producers.importers.content import content_text, text_field
from producers.importers.json_scan import Broken, Item, excerpt_of
from producers.importers.jsonl import values_of
from producers.importers.openhands_actions import (
    answered,
    call_id_of,
    exit_code_of,
    finish_of,
    first_policy,
    is_answer,
    observed_kind,
    observed_text,
    policy_of_event,
    response_id,
    task_of,
    typed_text,
    verdict_of,
)
from producers.importers.openhands_parts import tools_of
from producers.importers.place import Place
from producers.importers.remembered import Remembered
from producers.importers.transcript import Transcript
from schemas.events import TurnKind


class History:
    """One history, read event by event in the order of their ids."""

    def __init__(self, rows: list[Item | Broken], transcript: Transcript, file: str, around: dict[str, Any]) -> None:
        self.rows, self.transcript, self.file, self.around = rows, transcript, file, around
        self.refused: list[RefusedRow] = []
        self.at = Place()
        self.remembered = Remembered()
        self.tools: list[dict[str, Any]] = []
        self.turn_of: dict[Any, int | None] = {}
        """Id of an action -> its turn; None for an action that is no answer of the policy."""
        self.call_of: dict[Any, str | None] = {}
        """Id of an action -> the tool call that it carries out."""
        self.answered: tuple[str | None, int | None] = (None, None)
        """Id of the latest response and its turn, None where it could not be read."""
        self.latest: int | None = None
        """The turn of the action right before, for observations without `cause`."""
        self.delegated: list[tuple[int, Place]] = []
        """Turns that handed over to another agent, and where the conversation then stood."""
        self.policy = first_policy(values_of(rows), around)

    def take(self) -> list[RefusedRow]:
        """Read everything; returns the rows refused."""
        for row in self._in_order():
            if isinstance(row, Broken):
                self.at, self.latest = self.transcript.lose(self.at), None
                continue
            try:
                self._event(row.value, row.line)
            except Unreadable as err:
                self.refused.append(RefusedRow(self.file, row.line, str(err), excerpt_of(row.value)))
        verdict = verdict_of(self.around)
        if verdict is not None and self.at.turn is not None and not self.at.lost:
            self.transcript.observe(self.at, "test_verdict", None, line=self.rows[0].line, verdict=verdict)
        return self.refused

    def _in_order(self) -> list[Item | Broken]:
        """By id where every event has one of its own: ids count the events of a conversation."""
        by_id = {own: row for row in self.rows if isinstance(row, Item) and type(own := row.value.get("id")) is int}
        return [by_id[own] for own in sorted(by_id)] if len(by_id) == len(self.rows) else self.rows

    def _event(self, event: dict[str, Any], line: int) -> None:
        if is_answer(event):
            self._answer(event, line)
        elif isinstance(event.get("observation"), str):
            self._observation(event, line)
        elif isinstance(event.get("action"), str):
            self.turn_of[_key(event.get("id"))] = None
            self.latest = None
            self._action(event, line)
        else:
            raise Unreadable("the event has neither `action` nor `observation`")

    def _answer(self, event: dict[str, Any], line: int) -> None:
        """An action of the policy: an answer, or one more of the calls that the latest answer made at once."""
        own = response_id(event)
        if own is None or own != self.answered[0]:
            self.answered = (own, None)
            self.at = self._turn(event, line)
            self.answered = (own, self.at.turn)
        self.latest = self.answered[1]
        if self.latest is None:
            return
        if event.get("id") is not None:
            self.turn_of[_key(event["id"])] = self.latest
            self.call_of[_key(event["id"])] = call_id_of(event)
        if event["action"] == "delegate":
            self.delegated.append((self.latest, self.at))
            self.at = self.transcript.say(Place(), {"role": "user", "content": task_of(event)})

    def _turn(self, event: dict[str, Any], line: int) -> Place:
        kind: TurnKind = "side" if self.delegated else "main"
        try:
            response = answered(event)
        except Unreadable:
            self.at, self.latest = self.transcript.lose(self.at), None
            raise
        self.policy = policy_of_event(event) or self.policy
        at = self.transcript.answer(
            self.at,
            response,
            finish_reason=finish_of(event, response),
            policy=self.policy,
            line=line,
            kind=kind,
            tools=self.tools,
            ended_at=when(event),
        )
        self.remembered.add([_key(event.get("id"))], at.message)
        return at

    def _action(self, event: dict[str, Any], line: int) -> None:
        """An action of a person, or of OpenHands itself."""
        arguments = event.get("args")
        args: dict[str, Any] = arguments if isinstance(arguments, dict) else {}
        if event["action"] == "system":
            self.tools = tools_of(args.get("tools"))
            system = {"role": "system", "content": content_text(args.get("content"), "`content`")}
            self.at = self.transcript.say(self.at, system)
        elif event["action"] == "message" and event.get("source") == "user":
            self.at = self.transcript.reply(self.at, typed_text(event), line=line, observed_at=when(event))
        elif event["action"] == "condensation":
            self.at = self.transcript.compact(self.at, self._condensed(args))
            return
        else:
            return
        self.remembered.add([_key(event.get("id"))], self.at.message)

    def _condensed(self, args: dict[str, Any]) -> list[dict[str, Any]]:
        ids = args.get("forgotten_event_ids")
        if not isinstance(ids, list):
            start, end = args.get("forgotten_events_start_id"), args.get("forgotten_events_end_id")
            known = [row.value.get("id") for row in self.rows if isinstance(row, Item)]
            span = range(start, end + 1) if type(start) is int and type(end) is int else range(0)
            ids = [own for own in known if type(own) is int and own in span]
        summary = text_field(args, "summary")
        return self.remembered.forget([_key(one) for one in ids], summary, args.get("summary_offset"))

    def _observation(self, event: dict[str, Any], line: int) -> None:
        cause, kind = event.get("cause"), observed_kind(event)
        if kind is None:
            return
        turn = self.latest if cause is None else self.turn_of.get(_key(cause), -1)
        if turn == -1:
            self.at = self.transcript.lose(self.at)
            raise Unreadable(f"it is about the action {cause!r}, which is not before it or could not be read")
        if turn is None:
            return
        if self.delegated and self.delegated[-1][0] == turn:
            self.at = self.delegated.pop()[1]
        call_id = call_id_of(event) or self.call_of.get(_key(cause))
        at = self.transcript.result(
            self.at,
            call_id,
            observed_text(event),
            line=line,
            kind=kind,
            exit_code=exit_code_of(event),
            observed_at=when(event),
            turn=turn,
        )
        if at is not self.at:
            self.remembered.add([_key(event.get("id"))], at.message)
        self.at = at


def _key(own: Any) -> Any:
    """An event's id as a key: a number or text."""
    return own if isinstance(own, (int, str)) else repr(own)
