"""Silent sessions: closed once by an event on the log, so that their last turn is judged."""

from __future__ import annotations

import time

from processors.dead_letters import Delivery
from processors.idle import SOURCE, close_idle
from processors.recording import record
from processors.relay import record_of
from schemas.envelope import decode
from schemas.events import SessionClosed, Tokens
from tests.processors.conversations import Recording, next_state, turn


def closings(recording: Recording, idle_s: float = 0.0) -> int:
    with recording.engine.begin() as connection:
        return close_idle(connection, idle_s=idle_s)


def deliver_outbox(recording: Recording) -> None:
    """What the relay does, without a broker: every message of the outbox arrives."""
    with recording.engine.begin() as connection:
        rows = connection.exec_driver_sql("SELECT * FROM outbox ORDER BY outbox_id").all()
        wired = [record_of(row) for row in rows]
        record(
            connection,
            [Delivery("agent-events", 7, i, one.key, list(one.headers), one.value) for i, one in enumerate(wired)],
        )


def test_a_silent_session_is_closed_by_an_event_and_its_last_turn_is_judged(recording: Recording) -> None:
    recording.record(turn("a"), next_state("n", "a"), turn("mute", session="other"))
    assert closings(recording, idle_s=3600.0) == 0
    assert closings(recording) == 2
    assert closings(recording) == 0, "workers that find the same session write one event"
    topic, key, value = recording.one("SELECT topic, key, value FROM outbox WHERE key = 's'")
    assert (topic, key) == ("agent-events", "s")
    (row,) = list(recording.rows("SELECT message_id, message_type FROM outbox WHERE key = 's'"))
    headers = [("ce_id", row[0].encode()), ("ce_source", SOURCE.encode()), ("ce_type", row[1].encode())]
    assert decode(value, headers).data == SessionClosed(session_id="s", reason="idle")
    deliver_outbox(recording)
    assert recording.signals("a") == {"reward": "open", "hint": "open", "teacher": "waiting"}
    assert recording.sample("mute") == ("dropped", "no_next_state", False)
    assert recording.rows("SELECT close_reason FROM sessions") == [("idle",), ("idle",)]
    assert closings(recording) == 0


def test_a_session_that_waits_for_nothing_is_left_alone(recording: Recording) -> None:
    recording.record(
        turn("side", kind="side"), turn("done", session="closed"), SessionClosed(session_id="closed", turns=1)
    )
    assert closings(recording) == 0


def test_a_closing_event_whose_counts_never_come_true_does_not_wait_for_ever(recording: Recording) -> None:
    recording.record(turn("a"), next_state("n", "a"), SessionClosed(session_id="s", turns=2))
    assert recording.signals("a") == {}
    assert closings(recording) == 1
    deliver_outbox(recording)
    assert recording.signals("a")["reward"] == "open"


def test_a_turn_that_is_only_judged_gets_its_session_closed_too(recording: Recording) -> None:
    recording.record(turn("a", tokens=Tokens()), next_state("n", "a"))
    time.sleep(0.4)
    assert closings(recording, idle_s=0.3) == 1


def test_a_session_that_goes_on_and_falls_silent_again_is_closed_by_another_event(recording: Recording) -> None:
    recording.record(turn("a"))
    assert closings(recording) == 1
    recording.record(turn("b", parent="a", ordinal=1))
    assert closings(recording) == 1
    assert recording.one("SELECT count(DISTINCT message_id) FROM outbox") == (2,)
