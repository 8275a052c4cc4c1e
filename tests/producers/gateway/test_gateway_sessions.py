"""Where a request stands is read from its messages: links, branches, siblings, next states."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.gateway.sessions import Place, Siblings, derived_session, locate, thread_hash, turn_id

USER = {"role": "user", "content": "What is the time in Oslo?"}
CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "clock", "arguments": '{"city": "Oslo", "h24": true}'}},
        {"id": "b", "type": "function", "function": {"name": "zone", "arguments": '{"city":"Oslo"}'}},
    ],
}
RESULT_A = {"role": "tool", "tool_call_id": "a", "content": "14:05"}
RESULT_B = {"role": "tool", "tool_call_id": "b", "content": "CET"}
ANSWER = {"role": "assistant", "content": "It is 14:05."}
THANKS = {"role": "user", "content": "Thanks!"}


def place(*messages: dict[str, Any], siblings: Siblings | None = None) -> Place:
    return locate("s", list(messages), siblings or Siblings())


def recorded(siblings: Siblings, *conversation: dict[str, Any]) -> str:
    """The id that a turn gets which ends this conversation."""
    conversation_hash = thread_hash(list(conversation))
    number = siblings.another("s", conversation_hash)
    return turn_id("s", place(*conversation[:-1]).ordinal, conversation_hash, number)


def test_a_first_request_has_no_parent_and_answers_nothing() -> None:
    assert place({"role": "system", "content": "Be brief."}, USER) == Place(0, None, [])


def test_each_request_continues_the_turn_before_it() -> None:
    siblings = Siblings()
    first = recorded(siblings, USER, ANSWER)
    second = recorded(siblings, USER, ANSWER, THANKS, {"role": "assistant", "content": "My pleasure."})
    later = place(USER, ANSWER, THANKS, {"role": "assistant", "content": "My pleasure."}, USER)
    assert place(USER, ANSWER, THANKS).parent_turn_id == first
    assert (later.parent_turn_id, later.ordinal) == (second, 2)
    assert first != second


def test_parallel_tool_results_then_a_reply_are_all_next_states_in_order() -> None:
    found = place(USER, CALLS, RESULT_A, RESULT_B, THANKS)
    assert [(s.kind, s.place, s.tool_call_id, s.content) for s in found.next_states] == [
        ("tool_result", 0, "a", "14:05"),
        ("tool_result", 1, "b", "CET"),
        ("user_reply", 2, None, "Thanks!"),
    ]
    assert len({s.next_state_id for s in found.next_states}) == 3


def test_two_tool_results_of_the_same_text_are_two_next_states() -> None:
    same = {**RESULT_B, "content": "14:05"}
    assert len({s.next_state_id for s in place(USER, CALLS, RESULT_A, same).next_states}) == 2


@pytest.mark.parametrize(
    "respelt",
    [
        {**ANSWER, "content": "  It is 14:05.\n"},
        {**ANSWER, "content": [{"type": "text", "text": "It is 14:05."}]},
        {**ANSWER, "reasoning": "I asked the clock.", "refusal": None, "tool_calls": []},
        {**ANSWER, "tool_calls": None, "name": "assistant"},
    ],
)
def test_what_a_client_leaves_out_or_adds_does_not_break_the_link(respelt: dict[str, Any]) -> None:
    assert place(USER, respelt, THANKS).parent_turn_id == place(USER, ANSWER, THANKS).parent_turn_id


def test_arguments_printed_again_by_the_client_are_the_same_call() -> None:
    function = {"name": "clock", "arguments": '{"h24":true,"city":"Oslo"}'}
    again = {**CALLS, "content": "", "tool_calls": [{"id": "a", "function": function}, CALLS["tool_calls"][1]]}
    assert place(USER, again, RESULT_A).parent_turn_id == place(USER, CALLS, RESULT_A).parent_turn_id


@pytest.mark.parametrize(
    "arguments", ["[" * 600 + "]" * 600, "[" * 100_000, '{"n": 1' + "0" * 400 + "}", '{"n": NaN}', "{"]
)
def test_arguments_that_no_one_can_read_link_all_the_same(arguments: str) -> None:
    call = {**CALLS, "tool_calls": [{"id": "a", "function": {"name": "clock", "arguments": arguments}}]}
    siblings = Siblings()
    assert recorded(siblings, USER, call) == place(USER, call, RESULT_A, siblings=siblings).parent_turn_id


def test_a_reused_tool_call_id_answers_the_call_before_it() -> None:
    first = place(USER, CALLS, RESULT_A)
    second = place(USER, CALLS, RESULT_A, CALLS, RESULT_A)
    assert first.parent_turn_id != second.parent_turn_id
    assert first.next_states[0].next_state_id != second.next_states[0].next_state_id


def test_an_edited_message_is_a_branch() -> None:
    edited = {"role": "user", "content": "What is the time in Bergen?"}
    assert place(edited, ANSWER, THANKS).parent_turn_id != place(USER, ANSWER, THANKS).parent_turn_id


def test_an_edited_reply_is_another_next_state_of_the_same_turn() -> None:
    kind, rude = place(USER, ANSWER, THANKS), place(USER, ANSWER, {"role": "user", "content": "Wrong."})
    assert kind.parent_turn_id == rude.parent_turn_id
    assert kind.next_states[0].next_state_id != rude.next_states[0].next_state_id


def test_the_same_answer_again_is_a_sibling_and_the_reply_goes_to_the_later_one() -> None:
    siblings = Siblings()
    first, second = recorded(siblings, USER, ANSWER), recorded(siblings, USER, ANSWER)
    assert first != second
    assert place(USER, ANSWER, THANKS, siblings=siblings).parent_turn_id == second


def test_a_request_sent_again_says_the_same() -> None:
    assert place(USER, CALLS, RESULT_A, RESULT_B, THANKS) == place(USER, CALLS, RESULT_A, RESULT_B, THANKS)


def test_a_message_after_an_aborted_turn_is_no_feedback_on_the_older_turn() -> None:
    # The client dropped the aborted answer.
    found = place(USER, ANSWER, THANKS, {"role": "user", "content": "Hello?"})
    assert [s.content for s in found.next_states] == ["Thanks!"]
    # The client kept it, empty.
    siblings = Siblings()
    empty = {"role": "assistant", "content": ""}
    aborted = recorded(siblings, USER, ANSWER, THANKS, empty)
    kept = place(USER, ANSWER, THANKS, empty, {"role": "user", "content": "Hello?"}, siblings=siblings)
    assert kept.parent_turn_id == aborted


def test_an_assistant_message_that_stands_twice_forks_nothing() -> None:
    siblings = Siblings()
    first = recorded(siblings, USER, ANSWER)
    assert place(USER, ANSWER, dict(ANSWER), THANKS) == place(USER, ANSWER, THANKS)
    assert place(USER, ANSWER, dict(ANSWER), THANKS).parent_turn_id == first


def test_a_kind_that_the_caller_declares_replaces_the_implied_one() -> None:
    found = locate("s", [USER, ANSWER, THANKS], Siblings(), "terminal_output")
    assert found.next_states[0].kind == "terminal_output"


def test_sessions_do_not_share_turns() -> None:
    ours, theirs = (locate(s, [USER, ANSWER, THANKS], Siblings()) for s in ("a", "b"))
    assert ours.parent_turn_id != theirs.parent_turn_id


def test_a_derived_session_is_that_of_its_first_messages() -> None:
    session = derived_session([USER], None)
    assert session.startswith("derived-")
    assert derived_session([USER, ANSWER, THANKS], None) == session
    assert derived_session([USER], "anna") != session
    assert derived_session([THANKS], None) != session


def test_forgotten_siblings_count_from_nought() -> None:
    siblings = Siblings(limit=2)
    assert [siblings.another("s", text) for text in ("a", "a", "b", "c", "a")] == [0, 1, 0, 0, 0]


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(["content", "tool_calls", "tool_call_id", "reasoning", "name", "x"])
roles = st.sampled_from(["system", "user", "assistant", "tool", "function", "developer", "\x00"])
some_messages = st.lists(
    st.builds(lambda role, rest: {**rest, "role": role}, roles, st.dictionaries(names, anything)),
    min_size=1,
    max_size=6,
)


@given(some_messages)
def test_whatever_clients_send_has_one_place(messages: list[dict[str, Any]]) -> None:
    found = locate("s", messages, Siblings())
    assert found == locate("s", messages, Siblings())
    assert (found.parent_turn_id is None) == (found.ordinal == 0)
    assert len({s.next_state_id for s in found.next_states}) == len(found.next_states)


@given(some_messages)
def test_an_answer_is_found_again_by_what_follows(messages: list[dict[str, Any]]) -> None:
    siblings = Siblings()
    made = recorded(siblings, *messages, {"role": "assistant", "content": "The answer, never said before."})
    followed = [*messages, {"role": "assistant", "content": "The answer, never said before."}, THANKS]
    assert place(*followed, siblings=siblings).parent_turn_id == made
