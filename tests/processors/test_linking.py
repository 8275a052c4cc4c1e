"""Linking: which turns are complete, what is asked about them, what is dropped, in any order of delivery."""

from __future__ import annotations

import math

import pytest

from processors.linking import Linked, link
from processors.trainable import of_another_policy, untrainable
from schemas.events import PolicyRef, Response, SessionClosed, Tokens, ToolCall, VersionSpan
from schemas.recipes import Recipe, recipe_named
from schemas.states import DROP_REASONS
from tests.processors.conversations import Recording, next_state, turn

OPEN = {"reward": "open", "hint": "open", "teacher": "waiting"}
JUDGED_ONLY = {"reward": "open", "hint": "open", "teacher": "done"}


def test_the_next_turn_completes_its_parent_and_opens_its_evaluations(recording: Recording) -> None:
    recording.record(turn("a"), next_state("n", "a"))
    assert recording.completion("a") is None
    assert recording.sample("a") == ("pending", None, False)
    assert recording.signals("a") == {}
    recording.record(turn("b", parent="a", ordinal=1, next_state_ids=["n"]))
    assert recording.completion("a") == ("next_turn", "b")
    assert recording.sample("a") == ("pending", None, True)
    assert recording.signals("a") == OPEN
    assert recording.sample("b") == ("pending", None, False)


def test_a_parent_waits_for_every_next_state_that_its_child_carried(recording: Recording) -> None:
    """Parallel tool results and the user's reply: the turn is not judged on half of them."""
    states = [next_state(f"n{i}", "a", kind="tool_result", tool_call_id=f"call-{i}", ordinal=i) for i in range(3)]
    recording.record(turn("b", parent="a", ordinal=1, next_state_ids=["n0", "n1", "n2"]), turn("a"))
    recording.record(states[2], states[0])
    assert recording.completion("a") is None
    recording.record(states[1])
    assert recording.completion("a") == ("next_turn", "b")
    assert recording.signals("a") == OPEN


def test_a_closed_session_completes_its_last_turn(recording: Recording) -> None:
    recording.record(turn("a"), next_state("n", "a"))
    recording.record(SessionClosed(session_id="s"))
    assert recording.completion("a") == ("session_closed", "s")
    assert recording.signals("a") == OPEN


def test_a_closing_event_that_overtakes_does_no_harm(recording: Recording) -> None:
    recording.record(SessionClosed(session_id="s", turns=2, next_states=2))
    recording.record(turn("a"))
    recording.record(turn("b", parent="a", ordinal=1, next_state_ids=["m"]), next_state("n", "b"))
    assert recording.completion("a") is None
    assert recording.completion("b") is None
    recording.record(next_state("m", "a"))
    assert recording.completion("a") == ("next_turn", "b")
    assert recording.completion("b") == ("session_closed", "s")
    assert recording.signals("a") == recording.signals("b") == OPEN


def test_a_complete_turn_that_nobody_answered_is_dropped_and_reopened_by_a_late_answer(recording: Recording) -> None:
    recording.record(turn("a"), SessionClosed(session_id="s"))
    assert recording.sample("a") == ("dropped", "no_next_state", False)
    assert recording.signals("a") == {}
    recording.record(next_state("n", "a"))
    assert recording.sample("a") == ("pending", None, True)
    assert recording.signals("a") == OPEN
    assert recording.one("SELECT turns_seen, pending, dropped, balance FROM ledger") == (1, 1, 0, 0)


def test_an_orphan_next_state_waits_for_its_turn(recording: Recording) -> None:
    recording.record(next_state("n", "a"), SessionClosed(session_id="s"))
    assert recording.one("SELECT count(*) FROM turn_completions") == (0,)
    recording.record(turn("a"))
    assert recording.signals("a") == OPEN


def test_a_reused_tool_call_id_links_by_turn(recording: Recording) -> None:
    """The same call id at two steps: each result belongs to the turn that it names."""
    call = [ToolCall(id="call-X", name="find", arguments="{}")]
    recording.record(
        turn("t6", ordinal=6, response=Response(tool_calls=call), finish_reason="tool_calls"),
        next_state("r7", "t6", kind="tool_result", tool_call_id="call-X", content="first"),
        turn("t16", parent="t6", ordinal=16, response=Response(tool_calls=call), next_state_ids=["r7"]),
        next_state("r17", "t16", kind="tool_result", tool_call_id="call-X", content="second"),
        SessionClosed(session_id="s", turns=2, next_states=2),
    )
    assert recording.rows("SELECT turn_id, content FROM next_states ORDER BY ordinal, next_state_id") == [
        ("t16", "second"),
        ("t6", "first"),
    ]
    assert recording.signals("t6") == recording.signals("t16") == OPEN


def test_branches_keep_their_own_next_states_and_name_one_cause(recording: Recording) -> None:
    """An edited message: two children of one parent, the first by ordinal and id is the cause, whichever came first."""
    later = turn("c", parent="a", ordinal=1, next_state_ids=["n-edited"])
    recording.record(turn("a"), later, next_state("n-edited", "a", ordinal=1))
    assert recording.completion("a") == ("next_turn", "c")
    recording.record(turn("b", parent="a", ordinal=1, next_state_ids=["n"]), next_state("n", "a"))
    assert recording.completion("a") == ("next_turn", "b")
    recording.record(SessionClosed(session_id="s"))
    assert recording.completion("a") == ("next_turn", "b")
    assert recording.one("SELECT count(*) FROM evaluations WHERE turn_id = 'a'") == (3,)


def test_a_side_turn_is_recorded_and_neither_judged_nor_a_cause(recording: Recording) -> None:
    recording.record(turn("a"), next_state("n", "a"), turn("title", parent="a", kind="side", ordinal=1))
    assert recording.completion("a") is None
    recording.record(next_state("m", "title"), SessionClosed(session_id="s"))
    assert recording.sample("title") == ("dropped", "side_turn", True)
    assert recording.signals("title") == {}
    assert recording.signals("a") == OPEN


def test_after_an_aborted_turn_the_users_text_judges_only_the_aborted_one(recording: Recording) -> None:
    """user, (aborted, empty), user: the second user text is no feedback on an older turn."""
    recording.record(
        turn("a"),
        next_state("first", "a"),
        turn("cut", parent="a", ordinal=1, finish_reason="aborted", tokens=Tokens(), next_state_ids=["first"]),
        next_state("second", "cut"),
        turn("b", parent="cut", ordinal=2, next_state_ids=["second"]),
        SessionClosed(session_id="s"),
    )
    assert recording.sample("cut") == ("dropped", "aborted", True)
    assert recording.signals("cut") == {}
    assert recording.signals("a") == OPEN
    assert recording.rows("SELECT next_state_id FROM next_states WHERE turn_id = 'a'") == [("first",)]


CANNOT_BE_TRAINED = [
    ({"tokens": Tokens()}, "no_tokens"),
    ({"tokens": Tokens(source="engine")}, "no_tokens"),
    ({"tokens": Tokens(source="engine", prompt_ids=[1])}, "no_tokens"),
    ({"tokens": Tokens(source="retokenised", prompt_ids=[1], response_ids=[2])}, "retokenised"),
    (
        {"tokens": Tokens(source="engine", prompt_ids=[1], response_ids=[1, 2, 3], response_logprobs=[-1.0, -2.0])},
        "logprob_length_mismatch",
    ),
    (
        {"tokens": Tokens(source="engine", prompt_ids=[1], response_ids=[1, 2], response_logprobs=[-1.0, -1e39])},
        "non_finite_logprob",
    ),
    ({"policy": PolicyRef(name="policy")}, "unknown_version"),
    ({"policy": PolicyRef(name="policy", spans=[VersionSpan(version=None, start=0, end=3)])}, "unknown_version"),
    ({"policy": PolicyRef(name="policy", spans=[VersionSpan(version=1, start=0, end=2)])}, "unknown_version"),
    (
        {
            "policy": PolicyRef(
                name="policy",
                spans=[VersionSpan(version=1, start=0, end=1), VersionSpan(version=2, start=2, end=3)],
            )
        },
        "unknown_version",
    ),
]


@pytest.mark.parametrize(("fields", "reason"), CANNOT_BE_TRAINED)
def test_what_cannot_be_trained_is_dropped_at_once_and_judged_all_the_same(
    recording: Recording, fields: dict[str, object], reason: str
) -> None:
    recording.record(turn("a", **fields), turn("mute", session="other", **fields))
    assert recording.sample("a") == ("dropped", reason, False)
    recording.record(next_state("n", "a"), SessionClosed(session_id="s"), SessionClosed(session_id="other"))
    assert recording.sample("a") == ("dropped", reason, True)
    assert recording.signals("a") == JUDGED_ONLY
    assert recording.sample("mute") == ("dropped", reason, False)
    assert recording.signals("mute") == {}
    assert recording.one("SELECT reason, finished_at IS NOT NULL FROM evaluations WHERE signal = 'teacher'") == (
        "the turn is not trained, so no teacher scores it",
        True,
    )


def test_spans_may_come_in_any_order_and_a_log_prob_of_nan_is_told() -> None:
    spans = [VersionSpan(version=2, start=1, end=3), VersionSpan(version=1, start=0, end=1)]
    assert untrainable(turn("a", policy=PolicyRef(name="p", spans=spans))) is None
    broken = Tokens(source="engine", prompt_ids=[1], response_ids=[1, 2], response_logprobs=[-1.0, math.nan])
    drop = untrainable(turn("a", tokens=broken))
    assert drop is not None
    assert (drop.reason, drop.detail) == ("non_finite_logprob", "1 of 2 log-probs are not finite, the first at 1")


def test_every_reason_given_is_of_the_closed_list() -> None:
    kinds = [{"kind": "side"}, {"finish_reason": "aborted"}, {"finish_reason": "error"}]
    for fields in [*kinds, *(fields for fields, _ in CANNOT_BE_TRAINED)]:
        drop = untrainable(turn("a", **fields))
        assert drop is not None
        assert drop.reason in DROP_REASONS


@pytest.mark.parametrize(
    ("recipe", "signals"),
    [
        (recipe_named("binary-rl"), {"reward": "open"}),
        (recipe_named("opd"), {"hint": "open", "teacher": "waiting"}),
        (recipe_named("combine"), OPEN),
    ],
)
def test_a_recipe_asks_only_for_its_own_signals(
    migrated_database_url: str, recipe: Recipe, signals: dict[str, str]
) -> None:
    recording = Recording(migrated_database_url, recipe)
    recording.record(turn("a"), next_state("n", "a"), SessionClosed(session_id="s"))
    assert recording.signals("a") == signals
    recording.engine.dispose()


def test_linking_again_changes_nothing(recording: Recording) -> None:
    recording.record(turn("a"), next_state("n", "a"), turn("b", parent="a", next_state_ids=["n"]))
    with recording.engine.begin() as connection:
        assert link(connection, ["s", "s", "unknown"]) == Linked(0, 0, 0)


def test_a_turn_of_another_policy_is_none_of_the_run() -> None:
    drop = of_another_policy(turn("a", policy=PolicyRef(name="elder")), "policy")
    assert drop is not None
    assert drop.reason == "other_policy"
    assert of_another_policy(turn("a", policy=PolicyRef(name="policy")), "policy") is None
