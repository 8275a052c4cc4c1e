"""A flood of unreadable records stops the worker, also after a restart; a few are kept and passed."""

from __future__ import annotations

import msgspec
import pytest

from processors.dead_letters import REPLAY_HEADER, Delivery
from processors.flood import FloodGate, TooManyDeadLetters, unreadable_before
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
        assert unreadable_before(connection, here, reach=9) == [0, 1]
        assert unreadable_before(connection, here, reach=1) == [1]
        for delivery, in_a_row in ((here, 2), (gap, 0)):
            gate = FloodGate(limit=9)
            gate.seed(connection, [delivery])
            assert gate.counts["agent-events", 0].in_a_row == in_a_row


def test_too_large_a_share_stops_though_good_ones_stand_between(recording: Recording) -> None:
    """Every fourth record is bad, which no count in a row finds."""
    gate = FloodGate(limit=9, window=10, share=0.3)
    for i in range(3):
        deliver_all(recording, gate, BAD, wire(turn(f"a{i}")), wire(turn(f"b{i}")), wire(turn(f"c{i}")), start=4 * i)
    deliver_all(recording, gate, wire(turn("d")), start=12)
    deliver_all(recording, gate, BAD, start=13)  # of the last ten places 4, 8 and 13 are bad: three are allowed
    with pytest.raises(TooManyDeadLetters, match=r"3 of the last 10 records of agent-events/0 up to offset 14 .*20%"):
        deliver_all(recording, FloodGate(limit=9, window=10, share=0.2), BAD, start=14)
    for i in range(15, 18):
        deliver_all(recording, gate, wire(turn(f"e{i}")), start=i)
    deliver_all(recording, gate, BAD, BAD, start=18)  # 4 and 8 are long ago
    assert recording.one("SELECT count(*) FROM dead_letters") == (6,)


def test_the_share_survives_a_restart_and_what_is_settled_counts_no_longer(recording: Recording) -> None:
    deliver_all(recording, FloodGate(limit=9, window=10, share=0.3), BAD, wire(turn("a")), BAD, wire(turn("b")), BAD)
    with pytest.raises(TooManyDeadLetters, match="4 of the last 10"):
        deliver_all(recording, FloodGate(limit=9, window=10, share=0.3), wire(turn("c")), BAD, start=5)
    with recording.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE dead_letters SET state = 'dropped', state_changed_at = now(), reason = 'mended' "
            "WHERE record_offset < 3"
        )
    deliver_all(recording, FloodGate(limit=9, window=10, share=0.3), wire(turn("c")), BAD, start=5)
    assert recording.one("SELECT count(*) FROM dead_letters WHERE state = 'open'") == (2,)


def test_a_partition_that_others_recorded_meanwhile_is_counted_anew(recording: Recording) -> None:
    gate, other = FloodGate(limit=3), FloodGate(limit=3)
    deliver_all(recording, gate, BAD, BAD)
    deliver_all(recording, other, wire(turn("a")), start=2)
    deliver_all(recording, gate, BAD, start=3)
    assert gate.counts["agent-events", 0].in_a_row == 1


def test_replays_that_fail_again_are_linked_and_no_flood(recording: Recording) -> None:
    deliver_all(recording, FloodGate(limit=9), BAD)
    (first,) = recording.one("SELECT dead_letter_id FROM dead_letters")
    again = WireRecord(key=b"k", value=b"{", headers=[(REPLAY_HEADER, str(first).encode())])
    lying = [WireRecord(b"k", b"{", [(REPLAY_HEADER, value)]) for value in (b"99999", b"x", b"9" * 40)]
    deliver_all(recording, FloodGate(limit=2), again, lying[0], start=1)
    deliver_all(recording, FloodGate(limit=9), *lying[1:], start=3)
    assert recording.rows("SELECT replay_of, replays FROM dead_letters ORDER BY record_offset") == [
        (None, 0),
        (first, 1),
        (None, 0),
        (None, 0),
        (None, 0),
    ]


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
