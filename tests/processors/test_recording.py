"""Recording: idempotent, one conflict or one bad record never costs another, and what was said is kept."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import text

from processors.dead_letters import Delivery
from processors.recording import Outcome, record
from processors.runs import RunMismatch, end_run, ensure_run
from processors.sessions import lock_sessions
from schemas.arrays import unpack_floats, unpack_ids
from schemas.claim_check import DirectoryBlobStore
from schemas.database import make_engine
from schemas.envelope import WireRecord, encode
from schemas.events import FeedbackGiven, SessionClosed, Tokens
from schemas.recipes import InvalidRecipe, Recipe, recipe_named
from tests.processors.conversations import Recording, deliver, delivery, dump, event, next_state, turn, wire


def test_the_same_event_twice_in_a_batch_and_again_later_is_one_row(recording: Recording) -> None:
    assert recording.record(turn("a"), turn("a")) == Outcome(1, 1, 0, 0)
    with recording.engine.connect() as connection:
        before = dump(connection)
    assert recording.record(turn("a")) == Outcome(0, 1, 0, 0)
    with recording.engine.connect() as connection:
        assert dump(connection) == before
    assert recording.one("SELECT count(*), min(record_offset) FROM events") == (1, 0)
    assert recording.letters() == []


def test_the_same_id_with_other_content_leaves_the_first_and_becomes_a_dead_letter(recording: Recording) -> None:
    other = turn("a", finish_reason="length")
    assert recording.record(turn("a"), other) == Outcome(1, 0, 1, 0)
    assert recording.record(other, turn("b")) == Outcome(1, 0, 1, 0)
    assert recording.rows("SELECT turn_id, finish_reason FROM turns ORDER BY 1") == [("a", "stop"), ("b", "stop")]
    assert [name for name, _ in recording.letters()] == ["IdConflict", "IdConflict"]
    assert "the first stays" in recording.letters()[0][1]


def test_a_fact_under_two_event_ids_is_one_row_or_a_conflict(recording: Recording) -> None:
    recording.record(turn("a"))
    assert recording.record(wire(turn("a"), "another-event")) == Outcome(0, 1, 0, 0)
    assert recording.record(wire(turn("a", ordinal=7), "a-third")) == Outcome(0, 0, 1, 0)
    assert recording.record(wire(turn("b"), "x"), wire(turn("b", ordinal=7), "y")) == Outcome(1, 0, 1, 0)
    assert recording.rows("SELECT turn_id, ordinal FROM turns ORDER BY 1") == [("a", 0), ("b", 0)]
    assert recording.rows("SELECT turn_id FROM samples ORDER BY 1") == [("a",), ("b",)]


def test_tokens_and_log_probs_are_kept_to_the_bit(recording: Recording) -> None:
    recording.record(turn("a"))
    prompt, response, logprobs = recording.one("SELECT prompt_ids, response_ids, response_logprobs FROM turns")
    assert unpack_ids(prompt).tolist() == [1, 2]
    assert unpack_ids(response).tolist() == [3, 4, 5]
    assert unpack_floats(logprobs).tolist() == [-0.5, -0.25, -0.125]


def test_nul_in_one_of_ten_rows_costs_none_and_the_original_is_kept(recording: Recording) -> None:
    states = [next_state(f"n{i}", "a", content="a\x00b" if i == 4 else "ab") for i in range(10)]
    assert recording.record(*states) == Outcome(10, 0, 0, 0)
    content, sanitised, raw = recording.one("SELECT content, sanitised, raw FROM next_states WHERE next_state_id='n4'")
    assert (content, sanitised) == ("a\ufffdb", True)
    assert json.loads(raw)["content"] == "a\x00b"
    assert recording.one("SELECT count(*) FROM next_states WHERE NOT sanitised AND raw IS NULL") == (9,)


def test_what_postgres_refuses_becomes_a_dead_letter_and_the_rest_goes_in(recording: Recording) -> None:
    nul_in_a_header = wire(turn("header"))
    nul_in_a_header.headers.append(("ce_id", b"id\x00"))
    too_large_an_ordinal = turn("large", ordinal=2**40)
    # Random text: Postgres would compress a repeated one until it fits into its index.
    too_long_a_key = turn("long", session=hashlib.shake_256(b"key").hexdigest(10_000))
    outcome = recording.record(turn("a"), nul_in_a_header, too_large_an_ordinal, turn("b"), turn("c", ordinal=1))
    assert outcome == Outcome(3, 0, 0, 2)
    assert recording.rows("SELECT turn_id FROM turns ORDER BY 1") == [("a",), ("b",), ("c",)]
    assert [name for name, _ in recording.letters()] == ["DataError", "NumericValueOutOfRange"]
    assert recording.record(too_long_a_key, turn("d")) == Outcome(1, 0, 0, 1)
    assert recording.letters()[-1][0] == "ProgramLimitExceeded"
    assert ("d",) in recording.rows("SELECT turn_id FROM turns")


@pytest.mark.parametrize(
    ("value", "headers", "error_class"),
    [
        (b"{", None, "MalformedEvent"),
        (b"[]", None, "MalformedEvent"),
        (None, None, "MalformedEvent"),
        (b"\xff\xfe", None, "MalformedEvent"),
        (b'{"turn_id": 5}', None, "MalformedEvent"),
        (b"[" * 100_000, None, "MalformedEvent"),
        (b"{}", [], "MalformedEvent"),
        (b"{}", [("ce_id", b"1"), ("ce_source", b"s"), ("ce_type", b"who.knows.v9")], "UnknownEventType"),
        (b"{}", [("ce_id", b"\xff"), ("ce_source", b"s"), ("ce_type", b"t")], "MalformedEvent"),
    ],
)
def test_poison_is_kept_whole_and_announced(
    recording: Recording, value: bytes | None, headers: list[tuple[str, bytes]] | None, error_class: str
) -> None:
    good = wire(turn("a"))
    bad = WireRecord(key=b"k", value=value, headers=good.headers if headers is None else headers)  # type: ignore[arg-type]
    assert recording.record(bad, turn("a")) == Outcome(1, 0, 0, 1)
    row = recording.one("SELECT topic, partition, record_offset, key, value, headers, error_class FROM dead_letters")
    assert row[:5] == ("agent-events", 0, 0, b"k", value)
    assert [(name, base64.b64decode(data)) for name, data in row[5]] == list(bad.headers)
    assert row[6] == error_class
    topic, message_type, body = recording.one("SELECT topic, message_type, value FROM outbox")
    assert (topic, message_type) == ("dead-letters", "hindstream.dead_letter.recorded.v1")
    message = msgspec.json.decode(body)
    assert (message["offset"], message["error_class"]) == (0, error_class)
    assert (None if message["value"] is None else base64.b64decode(message["value"])) == value


def test_a_claim_check_is_fetched_whole_and_a_missing_one_is_a_dead_letter(
    recording: Recording, tmp_path: Path
) -> None:
    blobs = DirectoryBlobStore(tmp_path)
    large = encode(event(next_state("n", "a", content="x" * (2 << 20))), blobs)
    lost = encode(event(next_state("m", "a", content="y" * (2 << 20))), DirectoryBlobStore(tmp_path / "elsewhere"))
    with recording.engine.begin() as connection:
        outcome = record(connection, deliver(large, lost), blobs=blobs)
    assert outcome == Outcome(1, 0, 0, 1)
    assert recording.one("SELECT length(content) FROM next_states") == (2 << 20,)
    assert "is not in" in recording.letters()[0][1]


def test_an_end_before_its_start_is_latency_zero_with_a_flag_and_both_times_kept(recording: Recording) -> None:
    recording.record(
        turn("skewed", started_at="2026-01-01T00:00:04Z", ended_at="2026-01-01T00:00:00Z"),
        turn("plain", started_at="2026-01-01T00:00:00Z", ended_at="2026-01-01T01:00:00.250+01:00"),
        turn("unclear", started_at="yesterday", ended_at="2026-01-01T00:00:00Z"),
    )
    assert recording.rows("SELECT turn_id, latency_ms, clock_skew, started_at FROM turns ORDER BY 1") == [
        ("plain", 250.0, False, "2026-01-01T00:00:00Z"),
        ("skewed", 0.0, True, "2026-01-01T00:00:04Z"),
        ("unclear", None, False, "yesterday"),
    ]


def test_unknown_fields_of_a_later_version_are_kept(recording: Recording) -> None:
    record_of = wire(turn("a"))
    plain = json.loads(record_of.value)
    plain["mood"] = {"calm": True}
    recording.record(WireRecord(record_of.key, json.dumps(plain).encode(), record_of.headers))
    assert recording.one("SELECT unknown FROM turns") == ({"mood": {"calm": True}},)


def test_feedback_is_recorded_before_its_turn(recording: Recording) -> None:
    recording.record(FeedbackGiven(feedback_id="f", session_id="s", turn_id="later", thumbs="down", correction="no"))
    recording.record(turn("later"))
    assert recording.one("SELECT turn_id, thumbs, correction FROM feedback") == ("later", "down", "no")


def test_an_absent_value_is_null_and_not_the_json_null(recording: Recording) -> None:
    recording.record(turn("a"))
    assert recording.one("SELECT origin IS NULL, raw IS NULL FROM turns") == (True, True)


def test_several_closing_events_end_the_same_in_either_order(recording: Recording) -> None:
    for session, order in (("x", (0, 1)), ("y", (1, 0))):
        closings = [
            SessionClosed(session_id=session, reason="done", turns=4, next_states=3),
            SessionClosed(session_id=session, reason="idle"),
        ]
        for index in order:
            recording.record(wire(closings[index], f"{session}-{index}"))
    rows = recording.rows("SELECT close_reason, expected_turns, expected_next_states FROM sessions ORDER BY session_id")
    assert rows == [("done", None, None)] * 2


def test_two_workers_with_events_of_one_session_take_turns(recording: Recording) -> None:
    """Without the lock neither sees the other's rows, and the parent would stay incomplete for ever."""
    parent, child, state = turn("p"), turn("c", parent="p", next_state_ids=["n"]), next_state("n", "p")
    with recording.engine.connect() as first:
        record(first, deliver(parent, child))
        second = threading.Thread(target=recording.record, args=(wire(state),))
        second.start()
        time.sleep(0.3)
        assert second.is_alive()
        first.commit()
        second.join(timeout=10)
    assert recording.completion("p") == ("next_turn", "c")


def test_sessions_are_locked_in_one_order_so_that_batches_cannot_wait_for_each_other(recording: Recording) -> None:
    sessions = [f"s{i}" for i in range(50)]
    faults: list[BaseException] = []

    def lock(order: list[str]) -> None:
        try:
            for _ in range(20):
                with recording.engine.begin() as connection:
                    lock_sessions(connection, order)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=lock, args=(order,)) for order in (sessions, sessions[::-1], sessions[25:])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert faults == []


def test_the_ledger_counts_the_turns_from_the_runs_start_to_its_end(recording: Recording) -> None:
    recording.record(turn("a"))
    with recording.engine.begin() as connection:
        assert ensure_run(connection, run="later", kind="live", policy="policy", recipe=recipe_named("opd"))
    recording.record(turn("b"), turn("side", kind="side"))
    with recording.engine.begin() as connection:
        end_run(connection, "live")
    recording.record(turn("c"))
    assert recording.rows("SELECT run, turns_seen, pending, dropped, balance FROM ledger ORDER BY run") == [
        ("later", 3, 2, 1, 0),
        ("live", 3, 2, 1, 0),
    ]


def test_a_run_that_starts_while_turns_are_inserted_balances(recording: Recording) -> None:
    """The run waits for the open transaction, whose turn is older, and so not its own."""
    with recording.engine.connect() as open_one:
        record(open_one, deliver(turn("a")))
        made = threading.Thread(target=_make_run, args=(recording,))
        made.start()
        time.sleep(0.3)
        assert made.is_alive()
        open_one.commit()
        made.join(timeout=10)
    recording.record(turn("b"))
    assert recording.rows("SELECT run, turns_seen, balance FROM ledger ORDER BY run") == [
        ("live", 2, 0),
        ("second", 1, 0),
    ]


def _make_run(recording: Recording) -> None:
    with recording.engine.begin() as connection:
        ensure_run(connection, run="second", kind="live", policy="policy", recipe=recipe_named("combine"))


def test_a_run_keeps_its_recipe(recording: Recording) -> None:
    with recording.engine.begin() as connection:
        assert not ensure_run(connection, run="live", kind="live", policy="policy", recipe=recipe_named("combine"))
        with pytest.raises(RunMismatch, match=r"its recipe is 'combine' .* not 'opd'.*another name"):
            ensure_run(connection, run="live", kind="live", policy="policy", recipe=recipe_named("opd"))
        with pytest.raises(RunMismatch, match="trains policy 'policy', not 'other'"):
            ensure_run(connection, run="live", kind="live", policy="other", recipe=recipe_named("combine"))
    with recording.engine.begin() as connection:
        end_run(connection, "live")
        with pytest.raises(RunMismatch, match="it ended at"):
            ensure_run(connection, run="live", kind="live", policy="policy", recipe=recipe_named("combine"))


def test_a_run_without_a_judge_is_refused_at_the_start(recording: Recording) -> None:
    silent = Recipe(name="silent", description="nobody judges")
    with recording.engine.begin() as connection, pytest.raises(InvalidRecipe, match="neither judge nor hint"):
        ensure_run(connection, run="silent", kind="live", policy="policy", recipe=silent)


def test_a_rolled_back_batch_leaves_nothing(migrated_database_url: str) -> None:
    recording = Recording(migrated_database_url)
    with recording.engine.connect() as connection:
        record(connection, deliver(turn("a"), WireRecord(b"k", b"{", [])))
        connection.rollback()
    with recording.engine.connect() as connection:
        assert all(rows == [] for rows in dump(connection, ("events", "turns", "samples", "outbox")).values())
        assert connection.execute(text("SELECT count(*) FROM dead_letters")).scalar_one() == 0
    recording.engine.dispose()


def test_a_batch_of_one_partition_keeps_the_place_of_the_first_delivery(recording: Recording) -> None:
    wired = wire(turn("a"))
    with recording.engine.begin() as connection:
        record(connection, [delivery(wired, 41, partition=3), delivery(wired, 99, partition=3)])
    assert recording.one('SELECT "partition", record_offset FROM events') == (3, 41)


def test_empty_batches_are_nothing(recording: Recording) -> None:
    deliveries: list[Delivery] = []
    with recording.engine.begin() as connection:
        assert record(connection, deliveries) == Outcome(0, 0, 0, 0)


def test_engines_bound_every_statement(migrated_database_url: str) -> None:
    engine = make_engine(migrated_database_url, pool_size=1, application_name="bounded")
    with engine.connect() as connection:
        assert connection.execute(text("SHOW statement_timeout")).scalar_one() == "1min"
        assert connection.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one() == "1min"
    engine.dispose()


def test_a_turn_with_no_ids_keeps_its_reward_and_is_never_ready(recording: Recording) -> None:
    """Case: empty ids with a reward reached training as zeros."""
    recording.record(turn("a", tokens=Tokens()), next_state("n", "a", verdict=1.0), SessionClosed(session_id="s"))
    assert recording.sample("a") == ("dropped", "no_tokens", True)
    assert recording.signals("a") == {"reward": "open", "hint": "open", "teacher": "done"}


@pytest.mark.parametrize("value", [None, float("nan"), float("-inf"), 1e39])
def test_a_log_prob_that_is_no_finite_number_is_a_reason_and_no_dead_letter(
    recording: Recording, value: float | None
) -> None:
    """JSON has no NaN: on the log it is null, and the turn is recorded and says why it is not trained."""
    tokens = Tokens(source="engine", prompt_ids=[1], response_ids=[2, 3], response_logprobs=[-0.5, value])
    assert recording.record(turn("t", tokens=tokens)).recorded == 1
    assert recording.sample("t")[:2] == ("dropped", "non_finite_logprob")
    assert recording.letters() == []
