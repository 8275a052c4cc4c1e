"""A flood of unreadable records stops the worker, also after a restart; a few are kept and passed."""

from __future__ import annotations

import msgspec
import pytest

from processors.dead_letters import Delivery, FloodGate, TooManyDeadLetters, run_before
from processors.recording import record
from schemas.envelope import WireRecord
from schemas.topics import MAX_EVENT_BYTES
from tests.processors.conversations import Recording, deliver, turn, wire

BAD = WireRecord(key=b"k", value=b"{", headers=[])


def deliver_all(recording: Recording, gate: FloodGate, *wired: WireRecord, start: int = 0) -> None:
    with recording.engine.begin() as connection:
        record(connection, deliver(*wired, start=start), gate=gate)


def test_unreadable_records_with_good_ones_between_never_stop(recording: Recording) -> None:
    gate = FloodGate(limit=3)
    for i in range(5):
        deliver_all(recording, gate, BAD, BAD, wire(turn(f"t{i}")), start=3 * i)
    assert recording.one("SELECT count(*) FROM dead_letters") == (10,)
    assert recording.one("SELECT count(*) FROM turns") == (5,)


def test_too_many_in_a_row_stop_and_nothing_of_that_batch_is_kept(recording: Recording) -> None:
    gate = FloodGate(limit=3)
    deliver_all(recording, gate, BAD, BAD)
    with pytest.raises(TooManyDeadLetters, match=r"3 records in a row of agent-events/0 up to offset 2"):
        deliver_all(recording, gate, BAD, wire(turn("a")), start=2)
    assert recording.one("SELECT count(*) FROM dead_letters") == (2,)
    assert recording.one("SELECT count(*) FROM turns") == (0,)


def test_the_count_survives_a_restart_and_belongs_to_its_partition(recording: Recording) -> None:
    deliver_all(recording, FloodGate(limit=3), BAD, BAD)
    with pytest.raises(TooManyDeadLetters):
        deliver_all(recording, FloodGate(limit=3), BAD, start=2)
    other = Delivery("agent-events", 1, 2, b"k", [], b"{")
    with recording.engine.begin() as connection:
        record(connection, [other], gate=FloodGate(limit=3))
        here, gap = Delivery("agent-events", 0, 2, None, [], None), Delivery("agent-events", 0, 3, None, [], None)
        assert run_before(connection, here, limit=9) == 2
        assert run_before(connection, here, limit=1) == 1
        assert run_before(connection, gap, limit=9) == 0


def test_conflicting_ids_are_no_flood(recording: Recording) -> None:
    gate = FloodGate(limit=2)
    deliver_all(recording, gate, wire(turn("a")), *[wire(turn("a", ordinal=i)) for i in range(1, 6)])
    assert recording.one("SELECT count(*) FROM dead_letters WHERE error_class = 'IdConflict'") == (5,)
    deliver_all(recording, FloodGate(limit=2), BAD, start=6)


def test_a_redelivered_dead_letter_is_one_row_and_one_message(recording: Recording) -> None:
    for _ in range(2):
        deliver_all(recording, FloodGate(limit=9), BAD)
    assert recording.one("SELECT count(*) FROM dead_letters") == (1,)
    assert recording.one("SELECT count(*) FROM outbox") == (1,)


def test_a_large_one_is_announced_without_its_value_and_kept_with_it(recording: Recording) -> None:
    large = WireRecord(key=b"k", value=b"{" * MAX_EVENT_BYTES, headers=[("ce_id", b"\x00\xff")])
    deliver_all(recording, FloodGate(limit=9), large)
    assert recording.one("SELECT length(value) FROM dead_letters") == (MAX_EVENT_BYTES,)
    (body,) = recording.one("SELECT value FROM outbox")
    assert len(body) < 4096
    assert msgspec.json.decode(body)["value"] is None
