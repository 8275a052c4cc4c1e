"""One conversation on its way to events: turns with their parents, what answered them, what was said about them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from schemas.digests import content_id, next_state_id, turn_id
from schemas.envelope import Event
from schemas.events import (
    TYPE_OF,
    EventData,
    FeedbackGiven,
    FinishReason,
    NextStateKind,
    NextStateObserved,
    Origin,
    PolicyRef,
    Response,
    SessionClosed,
    TurnKind,
    TurnRecorded,
)
from schemas.text import sanitise_text

PREVIOUS = -1
"""As a turn's parent: the turn that was added just before it."""


class SessionDraft:
    """One conversation in the order of its log, turned into events once all of it is known.

    Turns follow each other in one branch, each the parent of the next, unless the importer names a parent. Turns are
    numbered as they are added; ids are hashes of source, session, number and kind.
    """

    def __init__(self, *, source: str, session_id: str, format_name: str, file: str) -> None:
        self.source = source
        self.session_id = session_id
        # A file name that is not UTF-8 would make every event of the file a sanitised one.
        self._origin = (format_name, sanitise_text(file))
        self._turns: list[TurnRecorded] = []
        self._parents: list[int | None] = []
        self._next_states: list[list[NextStateObserved]] = []
        self._feedback: list[list[FeedbackGiven]] = []

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
        parent: int | None = PREVIOUS,
        tools: list[dict[str, Any]] | None = None,
        kind: TurnKind = "main",
        group_id: str | None = None,
        started_at: str | None = None,
        ended_at: str | None = None,
    ) -> int:
        """Add the next turn; returns its number. It has no tokens: a text log holds none.

        Args:
            parent: number of the turn that this one follows, None for a root of its own.
            started_at, ended_at: the source's clock, ISO 8601; they order nothing.
        """
        number = len(self._turns)
        if parent == PREVIOUS:
            parent = number - 1 if number else None
        above = None if parent is None else self._turns[parent]
        self._turns.append(
            TurnRecorded(
                session_id=self.session_id,
                turn_id=turn_id(self.source, self.session_id, number, kind),
                parent_turn_id=above.turn_id if above else None,
                ordinal=above.ordinal + 1 if above else 0,
                kind=kind,
                messages=messages,
                tools=tools or [],
                response=response,
                finish_reason=finish_reason,
                policy=PolicyRef(name=policy),
                sampling=sampling or {},
                group_id=group_id,
                started_at=started_at,
                ended_at=ended_at,
                origin=self._at(line),
            )
        )
        self._parents.append(parent)
        self._next_states.append([])
        self._feedback.append([])
        return number

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
        exit_code: int | None = None,
        observed_at: str | None = None,
    ) -> None:
        """Add what answered the turn with number `turn`."""
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
                exit_code=exit_code,
                observed_at=observed_at,
                origin=self._at(line),
            )
        )

    def add_feedback(
        self,
        turn: int,
        key: str,
        *,
        score: float | None = None,
        thumbs: Literal["up", "down"] | None = None,
        correction: str | None = None,
        author: str | None = None,
        given_at: str | None = None,
    ) -> None:
        """Add a person's judgement of the turn with number `turn`. `key` tells it apart from the turn's others;
        `score` is in [-1, 1]."""
        judged = self._turns[turn].turn_id
        self._feedback[turn].append(
            FeedbackGiven(
                feedback_id=content_id("feedback", self.source, judged, sanitise_text(key)),
                session_id=self.session_id,
                turn_id=judged,
                score=score,
                thumbs=thumbs,
                correction=correction,
                author=author,
                given_at=given_at,
            )
        )

    def events(self, line: int) -> Iterator[Event]:
        """Each turn, then its next states and feedback, then the closing event with the counts; nothing if there is
        no turn.

        A turn names all next states of its parent that the log holds, also one that came later than its request:
        the parent then counts as complete only when every one of them is recorded, in any order of delivery.
        """
        if not self._turns:
            return
        for turn, parent, states, feedback in zip(
            self._turns, self._parents, self._next_states, self._feedback, strict=True
        ):
            carried = [] if parent is None else [state.next_state_id for state in self._next_states[parent]]
            yield self._event(turn.turn_id, msgspec.structs.replace(turn, next_state_ids=carried))
            for state in states:
                yield self._event(state.next_state_id, state)
            for given in feedback:
                yield self._event(given.feedback_id, given)
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
