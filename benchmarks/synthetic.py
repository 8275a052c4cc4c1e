"""Synthetic conversations as the gateway would record them: one turn, a user's reply, the session's end."""

from __future__ import annotations

from collections.abc import Iterator

from producers.simulated_user.taste import REACTIONS
from schemas.digests import next_state_id, turn_id
from schemas.envelope import WireRecord, encode, new_event
from schemas.events import (
    EventData,
    NextStateObserved,
    PolicyRef,
    Response,
    SessionClosed,
    Tokens,
    TurnRecorded,
    VersionSpan,
)

_SOURCE = "hindstream/benchmark"
_PROMPT_TOKENS = 40
_RESPONSE_TOKENS = 60
"""The sizes of the demo's turns."""
_SYSTEM = " Be brief, be right, and say so where you do not know." * 4

EVENTS_PER_SESSION = 3


def conversations(sessions: range) -> Iterator[WireRecord]:
    """`EVENTS_PER_SESSION` records for each session of these numbers, in order."""
    for number in sessions:
        session = f"bench-{number}"
        turn = turn_id(_SOURCE, session, 0, "main")
        reply = next_state_id(turn, "user_reply", 0)
        answer = "word " * _RESPONSE_TOKENS
        data: tuple[EventData, ...] = (
            TurnRecorded(
                session_id=session,
                turn_id=turn,
                ordinal=0,
                messages=[{"role": "user", "content": "What is a rainbow?"}],
                response=Response(content=answer),
                finish_reason="stop",
                policy=PolicyRef(name="policy", spans=[VersionSpan(version=0, start=0, end=_RESPONSE_TOKENS)]),
                tokens=Tokens(
                    source="engine",
                    prompt_ids=list(range(100, 100 + _PROMPT_TOKENS)),
                    response_ids=list(range(200, 200 + _RESPONSE_TOKENS)),
                    response_logprobs=[-0.5 - i / 1024 for i in range(_RESPONSE_TOKENS)],
                ),
            ),
            NextStateObserved(
                next_state_id=reply,
                session_id=session,
                turn_id=turn,
                kind="user_reply",
                role="user",
                content=REACTIONS["liked" if number % 2 else "too_long"],
            ),
            SessionClosed(session_id=session, turns=1, next_states=1),
        )
        for place, item in enumerate(data):
            yield encode(new_event(item, id=f"{session}-{place}", source=_SOURCE))


def dialogues(sessions: int, turns: int) -> Iterator[WireRecord]:
    """`sessions` conversations of `turns` turns: each turn carries what was said before it, is answered by a reply of
    its own words, and the session is closed at its end. Records in order, 2 a turn and 1 a session."""
    for number in range(sessions):
        session, parent, messages = f"talk-{number}", None, [{"role": "system", "content": "You help." + _SYSTEM}]
        carried: list[str] = []
        for place in range(turns):
            turn = turn_id(_SOURCE, session, place, "main")
            reply = next_state_id(turn, "user_reply", 0)
            messages = [*messages, {"role": "user", "content": f"Question {place} of conversation {number}?"}]
            said = f"Answer {place}: {'word ' * _RESPONSE_TOKENS}"
            answer = TurnRecorded(
                session_id=session,
                turn_id=turn,
                parent_turn_id=parent,
                ordinal=place,
                messages=messages,
                response=Response(content=said),
                finish_reason="stop",
                policy=PolicyRef(name="policy", spans=[VersionSpan(version=0, start=0, end=_RESPONSE_TOKENS)]),
                tokens=Tokens(
                    source="engine",
                    prompt_ids=list(range(100, 100 + _PROMPT_TOKENS * (place + 1))),
                    response_ids=list(range(200, 200 + _RESPONSE_TOKENS)),
                    response_logprobs=[-0.5 - i / 1024 for i in range(_RESPONSE_TOKENS)],
                ),
                next_state_ids=carried,
            )
            reaction = NextStateObserved(
                next_state_id=reply,
                session_id=session,
                turn_id=turn,
                kind="user_reply",
                role="user",
                content=f"{REACTIONS['liked' if number % 2 else 'too_long']} ({number}, {place})",
            )
            yield encode(new_event(answer, id=f"{session}-{place}-turn", source=_SOURCE))
            yield encode(new_event(reaction, id=f"{session}-{place}-reply", source=_SOURCE))
            messages = [*messages, {"role": "assistant", "content": said}]
            parent, carried = turn, [reply]
        closed = SessionClosed(session_id=session, turns=turns, next_states=turns)
        yield encode(new_event(closed, id=f"{session}-closed", source=_SOURCE))
