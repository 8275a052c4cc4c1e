"""What an importer makes of a file, laid out for tests, and files written row by row."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from producers.importers import Importer, RefusedRow
from schemas.envelope import Event, decode, encode
from schemas.events import FeedbackGiven, NextStateObserved, SessionClosed, TurnRecorded


class Imported:
    """One file as `importer` reads it.

    Reading it also checks what holds for every file: ids are unique, every event can be published and read back,
    every next state and parent names a turn of its session, and closing events count right.
    """

    def __init__(self, importer: Importer, path: Path) -> None:
        rows = list(importer.read(path))
        self.events = [row for row in rows if isinstance(row, Event)]
        self.refused = [row for row in rows if isinstance(row, RefusedRow)]
        data = [event.data for event in self.events]
        self.turns = [one for one in data if isinstance(one, TurnRecorded)]
        self.states = [one for one in data if isinstance(one, NextStateObserved)]
        self.closed = [one for one in data if isinstance(one, SessionClosed)]
        self.feedback = [one for one in data if isinstance(one, FeedbackGiven)]
        self._check(path.name)

    def counts(self) -> dict[str, Any]:
        """Sessions, turns, next states by kind, verdicts, refused rows."""
        return {
            "sessions": len(self.closed),
            "turns": len(self.turns),
            "next_states": dict(Counter(state.kind for state in self.states)),
            "verdicts": sum(state.verdict is not None for state in self.states),
            "refused": len(self.refused),
        }

    def answers(self) -> list[tuple[str | None, list[str | None]]]:
        """Each turn's text with the texts of its next states."""
        return [
            (turn.response.content, [state.content for state in self.states if state.turn_id == turn.turn_id])
            for turn in self.turns
        ]

    def asked(self, turn: int) -> list[tuple[str, str | None]]:
        """Role and text of every message that turn number `turn` was sent."""
        return [(message["role"], message["content"]) for message in self.turns[turn].messages]

    def parents(self) -> list[int | None]:
        """For each turn the position of its parent."""
        where = {turn.turn_id: position for position, turn in enumerate(self.turns)}
        return [None if turn.parent_turn_id is None else where[turn.parent_turn_id] for turn in self.turns]

    def _check(self, file: str) -> None:
        assert len({event.id for event in self.events}) == len(self.events)
        turns = {(turn.session_id, turn.turn_id) for turn in self.turns}
        assert all((state.session_id, state.turn_id) in turns for state in self.states)
        assert all(
            turn.parent_turn_id is None or (turn.session_id, turn.parent_turn_id) in turns for turn in self.turns
        )
        for event in self.events:
            record = encode(event)
            assert decode(record.value, record.headers).id == event.id
            if not isinstance(event.data, FeedbackGiven):
                assert event.data.origin is not None
                assert event.data.origin.file == file
        assert all((given.session_id, given.turn_id) in turns for given in self.feedback)
        for closed in self.closed:
            assert closed.turns == sum(turn.session_id == closed.session_id for turn in self.turns)
            assert closed.next_states == sum(state.session_id == closed.session_id for state in self.states)


def write_lines(path: Path, rows: Iterable[Any]) -> Path:
    """A file of JSON lines; a row that is text already stands as it is."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def same_events(importer: Importer, first: Path, second: Path) -> bool:
    """Whether two files give the same ids and contents."""
    return [(event.id, event.content_digest()) for event in Imported(importer, first).events] == [
        (event.id, event.content_digest()) for event in Imported(importer, second).events
    ]
