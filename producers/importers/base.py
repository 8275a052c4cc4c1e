"""What every importer shares: the contract, the row that was refused, and one session on its way to events.

An importer is a pure reader: it reads its file and nothing else, no clock, no network, no settings. The same file,
under whatever name and in whatever directory, gives the same ids, because they are made of the file's content.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from schemas.digests import canonical_json, content_id, next_state_id, sha256_hex, turn_id
from schemas.envelope import Event
from schemas.events import (
    TYPE_OF,
    EventData,
    FinishReason,
    NextStateKind,
    NextStateObserved,
    Origin,
    PolicyRef,
    Response,
    SessionClosed,
    TurnRecorded,
)
from schemas.text import sanitise, sanitise_text

UNKNOWN_POLICY = "unknown"
"""The policy's name where the file does not say which model answered."""


@dataclass(frozen=True)
class RefusedRow:
    """One row that did not go in: where it stands (file name, 1-based line), why, and how it begins."""

    file: str
    line: int
    reason: str
    excerpt: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


Row = Event | RefusedRow


class Unreadable(ValueError):
    """A row that an importer cannot read; the message is the reason that the user is shown."""


class Importer(Protocol):
    """One log format. Each is a module of this package; `producers.importers.IMPORTERS` lists them.

    Adding one: a file with these three names, and a line in that dict.
    """

    NAME: str
    """What the user types: `hindstream import NAME FILE`."""

    SOURCE: str
    """`ce_source` of its events."""

    def read(self, path: Path) -> Iterator[Row]:
        """Every event of the file, each session's in order and its closing event last, and every row refused.

        Never raises for what the file holds; one bad row costs itself and what cannot be told without it.

        Raises:
            OSError: the file cannot be opened.
        """
        ...


class SessionDraft:
    """One conversation in the order of its log, turned into events once all of it is known.

    Turns follow each other in one branch: each is the parent of the next. Ids are hashes of source, session,
    ordinal and kind.
    """

    def __init__(self, *, source: str, session_id: str, format_name: str, file: str) -> None:
        self.source = source
        self.session_id = session_id
        # A file name that is not UTF-8 would make every event of the file a sanitised one.
        self._origin = (format_name, sanitise_text(file))
        self._turns: list[TurnRecorded] = []
        self._next_states: list[list[NextStateObserved]] = []

    @property
    def turns(self) -> int:
        """How many turns there are so far."""
        return len(self._turns)

    def add_turn(
        self,
        *,
        messages: list[dict[str, Any]],
        response: Response,
        finish_reason: FinishReason,
        policy: str,
        line: int,
        sampling: dict[str, Any] | None = None,
    ) -> int:
        """Add the next turn; returns its ordinal. It has no tokens: a text log holds none."""
        ordinal = len(self._turns)
        self._turns.append(
            TurnRecorded(
                session_id=self.session_id,
                turn_id=turn_id(self.source, self.session_id, ordinal, "main"),
                parent_turn_id=self._turns[-1].turn_id if self._turns else None,
                ordinal=ordinal,
                messages=messages,
                response=response,
                finish_reason=finish_reason,
                policy=PolicyRef(name=policy),
                sampling=sampling or {},
                origin=self._at(line),
            )
        )
        self._next_states.append([])
        return ordinal

    def add_next_state(
        self,
        turn: int,
        kind: NextStateKind,
        *,
        line: int,
        role: str | None = None,
        content: str | None = None,
        tool_call_id: str | None = None,
        verdict: float | None = None,
    ) -> None:
        """Add what answered the turn with ordinal `turn`."""
        answered, states = self._turns[turn].turn_id, self._next_states[turn]
        states.append(
            NextStateObserved(
                next_state_id=next_state_id(answered, kind, len(states)),
                session_id=self.session_id,
                turn_id=answered,
                kind=kind,
                ordinal=len(states),
                role=role,
                content=content,
                tool_call_id=tool_call_id,
                verdict=verdict,
                origin=self._at(line),
            )
        )

    def events(self, line: int) -> Iterator[Event]:
        """Each turn, then its next states, then the closing event with the counts; nothing if there is no turn.

        A turn names all next states of its parent that the log holds, also one that came later than its request:
        the parent then counts as complete only when every one of them is recorded, in any order of delivery.
        """
        if not self._turns:
            return
        for ordinal, (turn, states) in enumerate(zip(self._turns, self._next_states, strict=True)):
            carried = self._next_states[ordinal - 1] if ordinal else []
            yield self._event(turn.turn_id, _with(turn, next_state_ids=[state.next_state_id for state in carried]))
            for state in states:
                yield self._event(state.next_state_id, state)
        closed = SessionClosed(
            session_id=self.session_id,
            turns=len(self._turns),
            next_states=sum(len(states) for states in self._next_states),
            origin=self._at(line),
        )
        yield self._event(content_id("closed", self.source, self.session_id), closed)

    def _at(self, line: int) -> Origin:
        return Origin(format=self._origin[0], file=self._origin[1], line=line)

    def _event(self, event_id: str, data: EventData) -> Event:
        # Not `new_event`, which reads the clock: whoever publishes the event stamps it.
        subject = data.session_id if isinstance(data, SessionClosed) else data.turn_id
        return Event(id=event_id, source=self.source, type=TYPE_OF[type(data)], data=data, subject=subject)


def session_id_of(source: str, content: Any) -> str:
    """A session's id from everything that the log says about it, independent of layout and file name.

    Hashed with ASCII escapes, so that two texts which differ only in a NUL or a lone surrogate stay two sessions.

    Raises:
        Unreadable: it is nested too deeply.
    """
    try:
        plain = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    except RecursionError as err:
        raise Unreadable("it is nested too deeply") from err
    return content_id("session", source, sha256_hex(plain.encode("ascii")))


def check_storable(content: Any) -> None:
    """Refuse before anything is yielded what could not be put on the log later.

    Raises:
        Unreadable: it is nested too deeply, or holds a number that JSON writers refuse.
    """
    try:
        canonical_json(sanitise(content)[0])
    except RecursionError as err:
        raise Unreadable("it is nested too deeply") from err
    except (ValueError, OverflowError) as err:
        raise Unreadable(f"it cannot be written as JSON: {err}") from err


def text_of(content: Any, what: str) -> str:
    """The text of a message's `content`: a string, or a list of text parts.

    Raises:
        Unreadable: it is neither; `what` names it.
    """
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content:
        parts = [part.get("text") if isinstance(part, dict) else None for part in content]
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) == len(parts):
            return "".join(texts)
    raise Unreadable(f"{what} is neither a string nor a list of text parts")


def _with(turn: TurnRecorded, *, next_state_ids: list[str]) -> TurnRecorded:
    fields = {name: getattr(turn, name) for name in turn.__struct_fields__}
    return TurnRecorded(**(fields | {"next_state_ids": next_state_ids}))
