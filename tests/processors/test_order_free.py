"""Any order of delivery, any repeats, any cut into batches: the same rows (invariants 2 and 3)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from processors.recording import record
from schemas.events import EventData, FeedbackGiven, SessionClosed, Tokens, TurnRecorded
from tests.processors.conversations import RECORDED, Recording, delivery, dump, next_state, turn, wire

KINDS: list[dict[str, Any]] = [
    {},
    {},
    {},
    {"kind": "side"},
    {"finish_reason": "aborted", "tokens": Tokens()},
    {"tokens": Tokens()},
    {"started_at": "2026-01-01T00:00:05Z", "ended_at": "2026-01-01T00:00:00Z"},
]


@st.composite
def sessions(draw: st.DrawFn) -> list[EventData]:
    """One to three sessions, each a tree of turns whose branches carry next states, closed or not."""
    events: list[EventData] = []
    for s in range(draw(st.integers(1, 3))):
        session = f"s{s}"
        turns: list[TurnRecorded] = []
        states: list[EventData] = []
        for t in range(draw(st.integers(1, 5))):
            turn_id = f"{session}-t{t}"
            parent = draw(st.sampled_from(turns)) if turns else None
            carried = []
            if parent is not None:
                for n in range(draw(st.integers(0, 2))):
                    state_id = f"{turn_id}-n{n}"
                    states.append(next_state(state_id, parent.turn_id, session, ordinal=n))
                    carried.append(state_id)
            turns.append(
                turn(
                    turn_id,
                    session,
                    parent.turn_id if parent else None,
                    ordinal=parent.ordinal + 1 if parent else 0,
                    next_state_ids=carried,
                    **draw(st.sampled_from(KINDS)),
                )
            )
        if draw(st.booleans()):
            states.append(next_state(f"{session}-last", turns[-1].turn_id, session, content="a\x00b"))
        if draw(st.booleans()):
            states.append(FeedbackGiven(feedback_id=f"{session}-f", session_id=session, turn_id=turns[0].turn_id))
        states += turns
        closing = draw(st.sampled_from(["open", "closed", "counted", "overcounted"]))
        if closing != "open":
            counts = {
                "closed": (None, None),
                "counted": (len(turns), sum(1 for one in states if hasattr(one, "next_state_id"))),
                "overcounted": (len(turns) + 1, None),
            }[closing]
            states.append(SessionClosed(session_id=session, turns=counts[0], next_states=counts[1]))
        events += states
    return events


@given(events=sessions(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_delivery_ends_in_the_same_rows(recording: Recording, events: list[EventData], seed: int) -> None:
    chance = random.Random(seed)
    wired = [wire(data) for data in events]
    in_order = delivered(recording, [wired])
    shuffled = [*wired, *chance.choices(wired, k=chance.randint(0, len(wired)))]
    chance.shuffle(shuffled)
    assert delivered(recording, cut(shuffled, chance)) == in_order
    assert delivered(recording, [[one] for one in reversed(wired)]) == in_order


def cut(items: Sequence[Any], chance: random.Random) -> list[list[Any]]:
    """`items` in batches of random sizes."""
    batches: list[list[Any]] = []
    rest = list(items)
    while rest:
        size = chance.randint(1, len(rest))
        batches.append(rest[:size])
        rest = rest[size:]
    return batches


def delivered(recording: Recording, batches: Sequence[Sequence[Any]]) -> dict[str, list[str]]:
    """The rows after `batches`, each in a transaction of its own, recorded into empty tables."""
    with recording.engine.begin() as connection:
        connection.execute(text(f"TRUNCATE {', '.join(RECORDED)} CASCADE"))
    offset = 0
    for batch in batches:
        with recording.engine.begin() as connection:
            record(connection, [delivery(one, offset + i) for i, one in enumerate(batch)])
        offset += len(batch)
    with recording.engine.connect() as connection:
        rows = dump(connection)
        balance = connection.execute(text("SELECT balance FROM ledger")).scalar_one()
        unsettled = connection.execute(text("SELECT count(*) FROM dead_letters")).scalar_one()
    assert (balance, unsettled) == (0, 0)
    return rows
