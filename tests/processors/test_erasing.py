"""An erased session leaves ids and counts, whatever came before, meanwhile and after; and nobody can read it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from sqlalchemy import Boolean, DateTime, Double, Integer, text

from processors.batcher import next_micro_batch
from processors.dead_letters import Delivery
from processors.erasing.contents import CONTENTS
from processors.erasing.seen import seen_by
from processors.erasing.session import contents_of, erase_session
from processors.evaluators.answers import keep_answer
from processors.evaluators.completion import complete
from processors.evaluators.deciding import failed
from processors.evaluators.once import about_session, asked_once
from processors.evaluators.queue import claim
from processors.recording import Outcome as Recorded
from processors.recording import record
from processors.transactions import Transactions
from schemas import tables
from schemas.arrays import pack_floats, pack_ids
from schemas.claim_check import DirectoryBlobStore
from schemas.digests import content_id
from schemas.envelope import encode
from schemas.events import FeedbackGiven, Origin, Response, SessionClosed, Tokens
from schemas.messages import SIGNAL_FINAL, SignalFinal
from tests.processors.conversations import Recording, deliver, event, next_state, turn, wire

pytestmark = pytest.mark.stack

CANARY = "canary-7f3a"
TOKENS = [1_936_941_415, 1_818_585_203]
"""Ids whose four bytes no other number of these rows has."""
NUMBERS = (Boolean, DateTime, Double, Integer)

KEPT = {
    "an id, or a digest": {
        "events": ("event_id", "session_id", "content_digest", "dataref"),
        "sessions": ("session_id",),
        "turns": ("turn_id", "session_id", "parent_turn_id", "group_id", "next_state_ids"),
        "next_states": ("next_state_id", "session_id", "turn_id"),
        "turn_completions": ("turn_id", "cause_id"),
        "feedback": ("feedback_id", "session_id", "turn_id"),
        "samples": ("sample_id", "run", "turn_id", "session_id", "content_digest", "micro_batch_id", "feedback_id"),
        "evaluations": ("run", "turn_id"),
        "open_questions": ("answer_digest", "asker"),
        "votes": ("run", "turn_id", "prompt_digest", "answer_digest"),
        "rewards": ("run", "turn_id"),
        "hints": ("run", "turn_id"),
        "teacher_scores": ("run", "turn_id", "answer_digest", "question_digest"),
        "micro_batches": ("micro_batch_id", "run", "recipe_digest", "digest"),
        "training_steps": ("run", "micro_batch_id"),
        "weight_versions": ("run", "micro_batch_id", "recipe_digest", "manifest_sha256"),
        "replays": ("run", "selection", "starts", "ends", "next"),
        "runs": ("run", "recipe_digest"),
        "outbox": ("message_id", "key"),
        "dead_letters": ("key",),
        "gateway_keys": ("key_id", "digest"),
    },
    "a word of a closed list, or a name that we or the operator gave": {
        "events": ("source", "type", "topic"),
        "sessions": ("close_reason",),
        "turns": ("log", "kind", "finish_reason", "policy", "version_spans", "token_source", "tenant"),
        "next_states": ("kind",),
        "turn_completions": ("completed_by",),
        "feedback": ("thumbs",),
        "samples": ("state", "drop_reason"),
        "evaluations": ("signal", "state", "worker"),
        "votes": ("signal", "annotator_kind", "status"),
        "rewards": ("status", "annotator_kind"),
        "hints": ("status", "annotator_kind"),
        "teacher_scores": ("teacher",),
        "outbox": ("topic", "message_type"),
        "dead_letters": ("topic", "error_class", "state", "state_changed_by"),
        "replays": ("log", "stop_after"),
        "micro_batches": ("policy", "state"),
        "runs": ("kind", "policy", "recipe_name", "recipe"),
        "tenants": ("tenant",),
        "gateway_keys": ("tenant", "name"),
    },
    "of steps and servers, over many samples": {
        "training_steps": ("policy", "skipped_reason", "metrics"),
        "weight_versions": ("policy", "path", "manifest"),
        "metric_definitions": ("name", "unit", "heading", "help"),
        "weight_loads": ("server", "policy", "status", "detail"),
        "weight_pins": ("policy", "holder"),
        "weight_uploads": ("policy", "url", "status", "detail"),
    },
}
"""Columns that an erasure leaves, by why they hold nothing that was said."""
ELSEWHERE = {
    "outbox": ("value",),
    "dead_letters": ("headers", "value", "error_message", "reason"),
    "model_answers": ("answer_digest", "question_digest", "purpose", "model", "answer", "session_id"),
}
"""Emptied, or deleted with their rows, by `processors.erasing.announced` and `.session`."""


def test_every_column_that_can_hold_words_is_emptied_or_said_to_hold_none() -> None:
    emptied = {(one.table, column) for one in CONTENTS for column in one.empty}
    kept = {(t, column) for of in [*KEPT.values(), ELSEWHERE] for t, columns in of.items() for column in columns}
    assert emptied & kept == set()
    wordy = {
        (table.name, column.name)
        for table in tables.metadata.sorted_tables
        for column in table.columns
        if not isinstance(column.type, NUMBERS)
    }
    classified = {one for one in emptied | kept if not isinstance(_type(one), NUMBERS)}
    assert wordy - classified == set(), "say in KEPT why it holds nothing that was said, or empty it in CONTENTS"
    assert kept - wordy == set(), "there is no such column"


def _type(place: tuple[str, str]) -> Any:
    return tables.metadata.tables[place[0]].columns[place[1]].type


def conversation(session: str = "s", words: str = CANARY) -> list[Any]:
    """Every kind of event, each field that takes words full of them."""
    origin, ids = Origin(format="x", file=words, line=1), TOKENS if words == CANARY else [1, 2]
    first = turn(
        f"{session}1",
        session=session,
        messages=[{"role": "user", "content": words}],
        tools=[{"name": words}],
        response=Response(content=words, reasoning=words),
        sampling={"stop": [words]},
        tokens=Tokens(source="engine", prompt_ids=ids, response_ids=ids, response_logprobs=[-0.5, -0.25]),
        started_at=words,
        origin=origin,
        user_digest=words,
        raw=words,
    )
    return [
        first,
        next_state(f"{session}n", f"{session}1", session=session, content=words, role=words, tool_call_id=words),
        FeedbackGiven(
            feedback_id=f"{session}f", session_id=session, turn_id=f"{session}1", correction=words, author=words
        ),
        turn(f"{session}2", session=session, parent=f"{session}1", ordinal=1, next_state_ids=[f"{session}n"]),
    ]


def fill_results(recording: Recording, run: str = "live", session: str = "s") -> None:
    """What evaluators leave of the session's first turn, as they write it, and its announcements."""
    turn_id = f"{session}1"
    with recording.engine.begin() as connection:
        signals: list[tuple[Literal["reward", "hint"], str]] = [("reward", "HUMAN"), ("hint", "LLM")]
        for signal, kind in signals:
            connection.execute(
                tables.votes.insert().values(
                    run=run,
                    turn_id=turn_id,
                    signal=signal,
                    vote=0,
                    annotator_kind=kind,
                    annotator=CANARY if kind == "HUMAN" else "judge",
                    status="valid",
                    score=1,
                    explanation=CANARY,
                    raw=CANARY,
                    answer_digest=f"answer-{signal}",
                )
            )
            keep_answer(connection, f"answer-{signal}", question="q", purpose=signal, model="m", answer={"c": CANARY})
            said = SignalFinal(run=run, session_id=session, turn_id=turn_id, signal=signal, status="x", text=CANARY)
            connection.execute(
                tables.outbox.insert().values(
                    topic="signals",
                    message_id=content_id("signal", run, turn_id, signal),
                    message_type=SIGNAL_FINAL,
                    key=session,
                    value=msgspec.json.encode(said),
                )
            )
        # An answer that no vote names yet: its worker died between the two.
        keep_answer(
            connection, "orphan", question="q", purpose="hint", model="m", answer={"c": CANARY}, session_id=session
        )
        connection.execute(
            tables.rewards.insert().values(
                run=run, turn_id=turn_id, status="scored", value=1.0, votes_valid=1, votes_total=1, explanation=CANARY
            )
        )
        connection.execute(
            tables.hints.insert().values(
                run=run, turn_id=turn_id, status="accepted", text=CANARY, votes_valid=1, votes_total=1, reason=CANARY
            )
        )
        ids, floats = pack_ids(TOKENS), pack_floats([-0.5, -0.25])
        connection.execute(
            tables.teacher_scores.insert().values(
                run=run,
                turn_id=turn_id,
                teacher="t",
                hinted_prompt_ids=ids,
                logprobs=floats,
                top_k=1,
                topk_ids=ids,
                topk_logprobs=floats,
                student_k=1,
                student_ids=ids,
                student_logprobs=floats,
            )
        )


def bad_records(start: int) -> list[Delivery]:
    """A record that cannot be read, one whose id is taken by other words, and one under another session's key."""
    conflict = wire(turn("s1", messages=[{"role": "user", "content": CANARY + "!"}]))
    unreadable = Delivery("agent-events", 0, start, b"s", [("ce_id", CANARY.encode())], b"\xff" + CANARY.encode())
    strange = Delivery("agent-events", 0, start + 2, b"elsewhere", [], f'{{"session_id": "s", "x": "{CANARY}"'.encode())
    return [unreadable, *deliver(conflict, start=start + 1), strange]


def holds(recording: Recording, *needles: bytes) -> list[str]:
    """Tables whose rows, as COPY writes them, hold one of the needles."""
    found = []
    with recording.engine.connect() as connection:
        raw: Any = connection.connection.dbapi_connection
        for table in tables.metadata.sorted_tables:
            for form in ("TEXT", "BINARY"):
                with raw.cursor().copy(f"COPY {table.name} TO STDOUT (FORMAT {form})") as copy:
                    dumped = b"".join(bytes(block) for block in copy)
                found += [
                    f"{table.name} {form}" for needle in needles if needle in dumped or needle.hex().encode() in dumped
                ]
    return found


NEEDLES = (CANARY.encode(), *(pack_ids([token]) for token in TOKENS))


def erase(recording: Recording, session: str = "s") -> dict[str, int]:
    with recording.engine.begin() as connection:
        return erase_session(connection, session)


@pytest.fixture
def full(recording: Recording) -> Recording:
    """A session with words in every column that takes any, and another that stays."""
    recording.record(*conversation(), *conversation("other", "stays"))
    fill_results(recording)
    with recording.engine.begin() as connection:
        record(connection, bad_records(100))
    recording.engine.dispose()
    for statement in (
        "UPDATE samples SET drop_detail = :w WHERE turn_id = 's1'",
        "UPDATE evaluations SET reason = :w WHERE turn_id = 's1'",
        "UPDATE next_states SET observed_at = :w, unknown = to_jsonb(ARRAY[:w]), raw = :b, "
        "origin = to_jsonb(CAST(:w AS text)) WHERE session_id = 's'",
        "UPDATE feedback SET given_at = :w, unknown = to_jsonb(ARRAY[:w]), raw = :b WHERE session_id = 's'",
        "UPDATE turns SET ended_at = :w, unknown = to_jsonb(ARRAY[:w]) WHERE turn_id = 's1'",
    ):
        with recording.engine.begin() as connection:
            names = {"w": CANARY, "b": CANARY.encode()} if ":b" in statement else {"w": CANARY}
            connection.execute(text(statement), names)
    return recording


def test_not_a_byte_is_left_in_any_table_and_the_ledger_balances(full: Recording) -> None:
    everywhere = {one.table for one in CONTENTS} | {"model_answers", "dead_letters", "outbox"}
    assert {place.split()[0] for place in holds(full, *NEEDLES)} == everywhere, "the test puts words into each of them"
    with full.engine.connect() as connection:
        told = contents_of(connection, "s")
    assert erase(full) == told
    assert all(told.values())
    assert holds(full, *NEEDLES) == []
    assert full.one("SELECT turns_seen, dropped, balance FROM ledger") == (4, 2, 0)
    assert full.sample("s1") == ("dropped", "erased", True)
    assert set(full.signals("s1").values()) <= {"done", "failed"}
    assert full.one("SELECT prompt_tokens, response_tokens FROM turns WHERE turn_id = 's1'") == (2, 2)
    assert full.rows("SELECT DISTINCT content FROM next_states WHERE session_id = 'other'") == [("stays",)]
    assert full.one("SELECT close_reason, erased_at IS NOT NULL FROM sessions WHERE session_id = 's'") == (
        "erased",
        True,
    )


def test_erasing_again_finds_nothing(full: Recording) -> None:
    erase(full)
    assert set(erase(full).values()) == {0}


def test_what_comes_again_or_late_is_left_out_with_a_count(full: Recording) -> None:
    erase(full)
    before = full.rows("SELECT * FROM turns ORDER BY turn_id")
    late = turn("s3", messages=[{"role": "user", "content": CANARY}])
    assert full.record(*conversation()) == Recorded(0, 4, 0, 0)
    assert full.record(late) == Recorded(0, 0, 0, 0, 1)
    assert full.record(late) == Recorded(0, 1, 0, 0)
    with full.engine.begin() as connection:
        assert record(connection, bad_records(200)[:2]) == Recorded(0, 1, 0, 0, 1)
    assert full.rows("SELECT * FROM turns ORDER BY turn_id") == before
    assert full.rows("SELECT event_id FROM events WHERE left_out") == [("event-s3",)]
    assert holds(full, *NEEDLES) == []


@pytest.mark.parametrize("place", range(5))
def test_the_event_that_erases_may_come_anywhere(recording: Recording, place: int) -> None:
    """Alone or in a batch with what it erases: no order leaves a word, and every event is known."""
    events = [*conversation()[:place], SessionClosed(session_id="s", reason="erased"), *conversation()[place:]]
    for one in events:
        recording.record(one)
    recording.record(*events)
    assert holds(recording, *NEEDLES) == []
    assert recording.one("SELECT count(*) FROM events") == (5,)
    assert recording.one("SELECT count(*) FROM events WHERE left_out") == (4 - place,)
    assert recording.one("SELECT balance FROM ledger") == (0,)
    assert recording.rows("SELECT state FROM evaluations WHERE state IN ('open', 'waiting', 'claimed')") == []


def test_in_one_batch_nothing_of_it_is_stored(recording: Recording) -> None:
    closed = SessionClosed(session_id="s", reason="erased")
    assert recording.record(*conversation()[:2], closed, *conversation()[2:]) == Recorded(1, 0, 0, 0, 4)
    assert recording.rows("SELECT turn_id FROM turns") == []


def test_claim_checks_of_what_is_left_out_are_deleted(recording: Recording, tmp_path: Path) -> None:
    blobs = DirectoryBlobStore(tmp_path)
    long = encode(event(turn("s9", messages=[{"role": "user", "content": CANARY * 200_000}])), blobs)
    recording.record(SessionClosed(session_id="s", reason="erased"))
    for _ in range(2):  # the second time the claim check is gone, which makes no dead letter of it
        with recording.engine.begin() as connection:
            record(connection, deliver(long, start=50), blobs=blobs)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert recording.letters() == []


def test_a_worker_that_was_at_it_writes_nothing(full: Recording) -> None:
    with full.engine.begin() as connection:
        held = claim(connection, signal="reward", worker="w", n=10, lease_s=60)
    mine = [one for one in held if one.turn_id == "s1"]
    assert len(mine) == 1
    erase(full)
    with full.engine.begin() as connection:
        assert complete(connection, [failed(mine[0], "s", CANARY)]) == mine
    assert holds(full, *NEEDLES) == []


async def test_an_answer_that_comes_after_the_erasure_is_used_and_not_kept(full: Recording) -> None:
    erase(full)
    transactions = Transactions(full.engine, threads=2, name="test")

    async def digest() -> str:
        return "late-answer"

    async def ask(key: str) -> tuple[dict[str, Any], str]:
        return {"content": CANARY}, key

    about_session.set("s")
    try:
        answer, _ = await asked_once(transactions, digest, ask, question="q", purpose="hint", model="m")
        about_session.set("other")
        await asked_once(transactions, digest, ask, question="q", purpose="hint", model="m")
    finally:
        about_session.set(None)
        transactions.close()
    assert answer == {"content": CANARY}
    assert full.rows("SELECT session_id FROM model_answers") == [("other",)]


def test_samples_of_a_published_micro_batch_stay_in_it_and_ready_ones_are_not_taken(full: Recording) -> None:
    """What is announced is never changed: the learner drops them, see tests/learner/test_erased.py."""
    with full.engine.begin() as connection:
        connection.execute(text("UPDATE samples SET state = 'ready', content_digest = 'x', ready_at = now()"))
        connection.execute(text("UPDATE runs SET recipe = jsonb_set(recipe, '{batch,size}', '2')"))
    erase(full, "other")
    with full.engine.begin() as connection:
        made = next_micro_batch(connection, "live", max_in_flight=1)
    assert made is not None
    assert {full.sample(turn_id)[0] for turn_id in ("s1", "s2")} == {"batched"}
    rows = erase(full)
    assert rows["samples dropped"] == 0
    assert {full.sample(turn_id)[0] for turn_id in ("s1", "s2")} == {"batched"}
    assert holds(full, *NEEDLES) == []


def test_the_versions_that_had_seen_it_and_their_descendants_are_named(full: Recording) -> None:
    """Version 1 of something else, 2 of it, 3 after 2; and a branch from 1."""
    with full.engine.begin() as connection:
        for seq in (1, 2, 3, 4):
            connection.execute(
                text(
                    "INSERT INTO micro_batches (micro_batch_id, run, policy, seq, recipe_digest, digest, size, state) "
                    "VALUES (:id, 'live', 'policy', :seq, 'r', 'd', 1, 'consumed')"
                ),
                {"id": f"b{seq}", "seq": seq},
            )
        for version, parent in ((0, None), (1, 0), (2, 1), (3, 2), (4, 1)):
            connection.execute(
                text(
                    "INSERT INTO weight_versions (policy, version, parent_version, run, micro_batch_id, path, "
                    "manifest, manifest_sha256) VALUES ('policy', :v, :p, :run, :batch, '/', '{}', 'm')"
                ),
                {
                    "v": version,
                    "p": parent,
                    "run": None if parent is None else "live",
                    "batch": None if parent is None else f"b{version}",
                },
            )
        connection.execute(text("UPDATE samples SET state = 'trained', micro_batch_id = 'b1' WHERE turn_id = 'other1'"))
        connection.execute(text("UPDATE samples SET state = 'trained', micro_batch_id = 'b2' WHERE turn_id = 's1'"))
    erase(full)
    with full.engine.connect() as connection:
        found = seen_by(connection, ["s"])
    assert [(one.version, one.samples, one.sessions) for one in found] == [(2, 1, ["s"]), (3, 0, [])]
    assert full.sample("s1")[0] == "trained"
