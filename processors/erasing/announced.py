"""Copies of what was said that stand outside facts and results: dead letters, and messages in the outbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection

from processors.erasing.contents import ERASED, TURNS
from schemas.digests import canonical_json, content_id
from schemas.messages import DeadLetterRecorded, SignalFinal
from schemas.topics import DEAD_LETTERS, SIGNALS

NO_LETTER = "erased on request"
"""What stands where a dead letter said what was wrong, in words that may quote it."""

_LETTERS = """
SELECT dead_letter_id, topic, partition, record_offset FROM dead_letters
WHERE (key = %(key)s OR position(%(tight)s IN value) > 0 OR position(%(loose)s IN value) > 0)
  AND (value IS NOT NULL OR headers <> '[]'::jsonb OR error_message <> %(words)s)
"""
"""By the record's key, which is the session; or, should the key be another, by the field of its JSON."""

_EMPTY_LETTERS = """
UPDATE dead_letters SET value = NULL, headers = '[]'::jsonb, error_message = %(words)s,
       reason = CASE WHEN state = 'replayed' THEN NULL ELSE %(erased)s END,
       state = CASE WHEN state = 'open' THEN 'dropped' ELSE state END,
       state_changed_at = coalesce(state_changed_at, now()),
       state_changed_by = coalesce(state_changed_by, %(erased)s)
WHERE dead_letter_id = ANY(%(ids)s)
"""

_SIGNALS = f"SELECT run, turn_id, signal FROM evaluations WHERE turn_id IN {TURNS}"


def letters_of(connection: Connection, session_id: str) -> Sequence[Any]:
    """Dead letters that hold a record of the session, with the place of that record."""
    field = msgspec.json.encode(session_id)
    values = {
        "key": session_id.encode(),
        "tight": b'"session_id":' + field,
        "loose": b'"session_id": ' + field,
        "words": NO_LETTER,
    }
    return connection.exec_driver_sql(_LETTERS, values).all()


def empty_letters(connection: Connection, letters: Sequence[Any]) -> int:
    """Take the records out of the letters, and out of their announcements; open ones are dropped."""
    if not letters:
        return 0
    connection.exec_driver_sql(
        _EMPTY_LETTERS,
        {"ids": [letter.dead_letter_id for letter in letters], "words": NO_LETTER, "erased": ERASED},
    )
    names = [content_id("dead", letter.topic, letter.partition, letter.record_offset) for letter in letters]
    for row in _messages(connection, DEAD_LETTERS, names):
        said = msgspec.json.decode(row.value, type=DeadLetterRecorded)
        bare = msgspec.structs.replace(said, key=None, headers=[], value=None, error_message=NO_LETTER)
        _replace(connection, row, bare)
    return len(letters)


def wordy_signals(connection: Connection, session_id: str) -> list[tuple[Any, SignalFinal]]:
    """Rows of the outbox that announce signals of the session with words, and the same without."""
    wordy = []
    for row in _messages(connection, SIGNALS, _signal_names(connection, session_id)):
        said = msgspec.json.decode(row.value, type=SignalFinal)
        if said.text is not None or said.explanation is not None:
            wordy.append((row, msgspec.structs.replace(said, text=None, explanation=None)))
    return wordy


def signals_sent(connection: Connection, session_id: str) -> int:
    """How many signals of the session are on their topic."""
    found = _messages(connection, SIGNALS, _signal_names(connection, session_id))
    return sum(row.sent_at is not None for row in found)


def empty_signals(connection: Connection, session_id: str) -> int:
    """Take the words out of announced signals, sent ones too."""
    wordy = wordy_signals(connection, session_id)
    for row, bare in wordy:
        _replace(connection, row, bare)
    return len(wordy)


def _signal_names(connection: Connection, session_id: str) -> list[str]:
    found = connection.exec_driver_sql(_SIGNALS, {"session": session_id})
    return [content_id("signal", row.run, row.turn_id, row.signal) for row in found]


def _messages(connection: Connection, topic: str, names: Sequence[str]) -> Sequence[Any]:
    return connection.exec_driver_sql(
        "SELECT outbox_id, value, sent_at FROM outbox WHERE topic = %(topic)s AND message_id = ANY(%(names)s)",
        {"topic": topic, "names": list(names)},
    ).all()


def _replace(connection: Connection, row: Any, bare: msgspec.Struct) -> None:
    connection.exec_driver_sql(
        "UPDATE outbox SET value = %(value)s WHERE outbox_id = %(id)s",
        {"id": row.outbox_id, "value": canonical_json(bare)},
    )
