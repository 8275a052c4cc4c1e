"""Scores without a model: people, verdicts, exit codes and rules, in that order."""

from __future__ import annotations

from typing import Any

import pytest

from processors.evaluators.code_judge import votes_of_code, votes_of_people
from processors.evaluators.inputs import Answered, Feedback, NextState
from processors.evaluators.judge import reward_by_rules
from schemas.recipes import InvalidRecipe, JudgeSpec, TextRule

RULES = [TextRule(pattern=r"^thanks\b", score=1), TextRule(pattern=r"\btoo long\b", score=-1)]
NO_MODEL = JudgeSpec(rules=RULES, votes=0)


def after(*states: NextState, feedback: tuple[Feedback, ...] = ()) -> Answered:
    return Answered(turn_id="t", session_id="s", next_states=states, feedback=feedback)


def reply(text: str) -> NextState:
    return NextState(kind="user_reply", content=text)


@pytest.mark.parametrize(("verdict", "score"), [(1.0, 1), (0.75, 1), (0.5, 0), (0.49, -1), (0.0, -1)])
def test_a_verdict_is_a_reward(verdict: float, score: int) -> None:
    opinion = reward_by_rules(NO_MODEL, after(NextState(kind="test_verdict", verdict=verdict)))
    assert opinion is not None
    result = opinion.result
    assert (result.value, result.status, result.annotator_kind, result.votes_valid) == (score, "scored", "CODE", 1)


@pytest.mark.parametrize("verdict", [7.0, -0.1, float("nan"), float("inf")])
def test_a_verdict_off_its_scale_is_an_invalid_vote_not_a_clamped_one(verdict: float) -> None:
    opinion = reward_by_rules(NO_MODEL, after(NextState(kind="test_verdict", verdict=verdict)))
    assert opinion is not None
    assert (opinion.result.status, opinion.result.value) == ("abstained", None)
    (vote,) = opinion.votes
    assert (vote.status, vote.score, vote.raw) == ("invalid", None, str(verdict))


@pytest.mark.parametrize(("codes", "score"), [([0], 1), ([1], -1), ([0, 0], 1), ([0, 2], -1), ([-9], -1)])
def test_exit_codes(codes: list[int], score: int) -> None:
    states = [NextState(kind="terminal_output", exit_code=code) for code in codes]
    (vote,) = votes_of_code(after(*states), [])
    assert vote.score == score


def test_people_outrank_verdicts_outrank_exit_codes_outrank_rules() -> None:
    states = (
        reply("Thanks, but it is too long"),
        NextState(kind="terminal_output", exit_code=1),
        NextState(kind="test_verdict", verdict=1.0),
    )
    down = (Feedback(thumbs="down", author="anna"),)
    for answered, score, kind in (
        (after(*states, feedback=down), -1, "HUMAN"),
        (after(*states), 1, "CODE"),
        (after(*states[:2]), -1, "CODE"),
        (after(states[0]), 1, "CODE"),
    ):
        opinion = reward_by_rules(NO_MODEL, answered)
        assert opinion is not None
        assert (opinion.result.value, opinion.result.annotator_kind) == (score, kind)


@pytest.mark.parametrize(
    ("feedback", "value", "status"),
    [
        ([Feedback(score=0.2)], 1.0, "scored"),
        ([Feedback(score=-1.0, thumbs="up")], -1.0, "scored"),
        ([Feedback(score=0.0)], 0.0, "scored"),
        ([Feedback(thumbs="up"), Feedback(thumbs="down")], 0.0, "tie"),
        ([Feedback(thumbs="up"), Feedback(thumbs="down"), Feedback(score=-0.5)], -1.0, "scored"),
    ],
)
def test_people_vote_by_sign(feedback: list[Feedback], value: float, status: str) -> None:
    opinion = reward_by_rules(JudgeSpec(), after(feedback=tuple(feedback)))
    assert opinion is not None
    assert (opinion.result.value, opinion.result.status) == (value, status)


def test_a_mere_correction_is_no_vote() -> None:
    assert votes_of_people([Feedback()]) == []
    assert reward_by_rules(JudgeSpec(), after(reply("well"), feedback=(Feedback(),))) is None


def test_rules_are_tried_in_their_order_on_their_kinds() -> None:
    states = (NextState(kind="tool_result", content="thanks"), reply("Too long! Thanks anyway"))
    (vote,) = votes_of_code(after(*states), RULES)
    assert (vote.score, vote.annotator) == (-1, "rule 1")


def test_where_code_cannot_tell_a_model_is_asked_or_there_is_no_reward() -> None:
    unclear = after(reply("Hm."))
    assert reward_by_rules(JudgeSpec(rules=RULES), unclear) is None
    opinion = reward_by_rules(NO_MODEL, unclear)
    assert opinion is not None
    assert (opinion.result.status, opinion.result.value) == ("abstained", None)


def test_code_is_silent_where_the_recipe_turns_it_off() -> None:
    passed: dict[str, Any] = {"kind": "test_verdict", "verdict": 1.0}
    assert reward_by_rules(JudgeSpec(code=False), after(NextState(**passed))) is None


def test_a_bad_pattern_is_named() -> None:
    with pytest.raises(InvalidRecipe, match=r"'\(' is no regular expression"):
        votes_of_code(after(reply("x")), [TextRule(pattern="(", score=1)])
