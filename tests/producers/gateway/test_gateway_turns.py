"""The events of a request: what is recorded, and that a repeated request repeats its next states."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from producers.gateway.sessions import Siblings, locate
from producers.gateway.turns import Exchange, Outcome, events_of, failed
from schemas.digests import user_digest
from schemas.envelope import decode, encode
from schemas.events import NextStateObserved, SessionClosed, TurnRecorded
from schemas.text import from_raw

MESSAGES = [
    {"role": "user", "content": "Sum a.txt"},
    {
        "role": "assistant",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "cat", "arguments": '{"f":"a.txt"}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "1\n2"},
]
ANSWER = Outcome(message={"role": "assistant", "content": "3", "reasoning": "1 + 2"}, finish_reason="stop")


def exchange(
    siblings: Siblings, outcome: Outcome = ANSWER, at: str = "2026-01-01T00:00:00.000Z", **more: Any
) -> Exchange:
    body = {"model": "policy", "messages": MESSAGES, "temperature": 0.5, **more.pop("body", {})}
    return Exchange(
        session_id="s",
        kind="main",
        body=body,
        place=locate("s", body["messages"], siblings),
        outcome=outcome,
        policy="p",
        started_at=at,
        ended_at=at,
        closes=more.pop("closes", False),
    )


def test_next_states_go_before_the_turn_that_names_them() -> None:
    name, events = events_of(exchange(Siblings(), closes=True), Siblings())
    state, turn, closed = (event.data for event in events)
    assert isinstance(state, NextStateObserved)
    assert isinstance(turn, TurnRecorded)
    assert isinstance(closed, SessionClosed)
    assert turn.turn_id == events[1].id == name
    assert turn.next_state_ids == [state.next_state_id] == [events[0].id]
    assert state.turn_id == turn.parent_turn_id
    assert (state.kind, state.tool_call_id, state.content) == ("tool_result", "c1", "1\n2")
    assert (turn.response.content, turn.response.reasoning, turn.finish_reason) == ("3", "1 + 2", "stop")
    assert turn.messages == MESSAGES
    assert turn.sampling == {"temperature": 0.5}
    assert turn.policy.name == "p"
    assert closed.reason == "done"


@pytest.mark.parametrize("field", ["user", "safety_identifier"])
def test_of_the_user_only_a_digest_is_recorded(field: str) -> None:
    def recorded(**more: Any) -> TurnRecorded:
        one = replace(exchange(Siblings(), body={field: "ann@example.org"}), **more)
        _, events = events_of(one, Siblings())
        assert not any(b"ann@" in encode(event).value for event in events)
        (turn,) = (event.data for event in events if isinstance(event.data, TurnRecorded))
        return turn

    digests = [
        recorded().user_digest,
        recorded(tenant="acme").user_digest,
        recorded(user_secret="pepper").user_digest,
        recorded(user_secret="salt").user_digest,
    ]
    assert digests[0] == user_digest("ann@example.org")
    assert digests[2] == user_digest("ann@example.org", secret="pepper")
    assert len(set(digests)) == 4
    _, events = events_of(exchange(Siblings(), body={field: 7}), Siblings())
    assert [event.data.user_digest for event in events if isinstance(event.data, TurnRecorded)] == [None]


def test_a_request_sent_again_repeats_its_next_states_byte_for_byte() -> None:
    siblings = Siblings()
    first_name, first = events_of(exchange(siblings), siblings)
    again_name, again = events_of(exchange(siblings, at="2026-01-01T00:05:00.000Z"), siblings)
    assert first[0].id == again[0].id
    assert encode(first[0]).value == encode(again[0]).value
    assert encode(first[0]).key == encode(again[0]).key
    assert first_name != again_name


def test_tool_calls_keep_their_arguments_as_they_came() -> None:
    call = {"id": "c2", "type": "function", "function": {"name": "cat", "arguments": '{"f": "b.txt" }'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    siblings = Siblings()
    name, events = events_of(exchange(siblings, Outcome(message=message, finish_reason="tool_calls")), siblings)
    turn = events[-1].data
    assert isinstance(turn, TurnRecorded)
    assert turn.response.tool_calls[0].arguments == '{"f": "b.txt" }'
    # A client that prints them again still continues this turn.
    respelt = {**call, "function": {"name": "cat", "arguments": '{"f":"b.txt"}'}}
    following = [*MESSAGES, {"role": "assistant", "tool_calls": [respelt]}, {"role": "tool", "content": "4"}]
    assert locate("s", following, siblings).parent_turn_id == name


@pytest.mark.parametrize("reason", ["aborted", "error"])
def test_a_turn_without_an_answer_is_recorded_so(reason: Any) -> None:
    _, events = events_of(exchange(Siblings(), failed(reason)), Siblings())
    turn = events[-1].data
    assert isinstance(turn, TurnRecorded)
    assert (turn.finish_reason, turn.response.content, turn.tokens.source) == (reason, "", "none")
    assert turn.tokens.response_ids == []


def test_refused_characters_are_replaced_and_kept_beside() -> None:
    messages = [*MESSAGES[:2], {"role": "tool", "tool_call_id": "c1", "content": "a\x00b\ud800"}]
    siblings = Siblings()
    _, events = events_of(exchange(siblings, body={"messages": messages}), siblings)
    for event in events:
        record = encode(event)
        back = decode(record.value, record.headers).data
        assert back.sanitised
        assert back.raw is not None
        if isinstance(back, NextStateObserved):
            assert back.content == "a\ufffdb\ufffd"
            assert from_raw(back.raw)["content"] == "a\x00b\ud800"
