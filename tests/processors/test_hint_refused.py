"""Hints that are refused: those that say too little, quote the answer or a correction, or hold private data."""

from __future__ import annotations

from typing import Any

import pytest

from processors.evaluators.hint import hint_by_answers, hint_by_rules
from processors.evaluators.inputs import Answered, Feedback, NextState, Turn
from processors.evaluators.llm_judge import Answer
from processors.evaluators.refusing import private, refusing
from processors.evaluators.teacher import with_hint
from schemas.recipes import HintSpec, recipe_named

ANSWER = "The river Spree flows through Berlin and ends in the Havel near Spandau."
CORRECTION = "It ends in the Havel"


def refused(hint: str, *corrections: str, response: dict[str, Any] | None = None, **spec: Any) -> str | None:
    answered = Answered(turn_id="t", session_id="s", feedback=tuple(Feedback(correction=text) for text in corrections))
    return refusing(HintSpec(**spec), answered, response or {"content": ANSWER})(hint)


@pytest.mark.parametrize(
    ("hint", "why"),
    [
        ("Name the river's mouth first.", None),
        ("Say: the river Spree flows through Berlin and ends in the Havel.", "leak"),
        ("say THE RIVER SPREE, flows through Berlin - and ends!", "leak"),
        ("The river Spree flows through Berlin.", None),  # six words in a row: it may be the task's own words
        ("Please just do it better this time.", "too little"),
        ("Improve your answer.", None),
        ("答えを短くしてください。", None),
    ],
)
def test_what_says_nothing_or_repeats_the_answer_is_refused(hint: str, why: str | None) -> None:
    said = refused(hint)
    assert (said is None) if why is None else (said is not None and said.startswith(why))


def test_a_whole_correction_is_a_leak_however_short_but_not_a_single_word() -> None:
    assert (refused("Remember that it ends in the Havel, not in the Elbe.", CORRECTION) or "").startswith("leak")
    assert refused("Remember where it ends: the Havel is a river too.", CORRECTION) is None
    assert refused("Think of the Havel, not of the Elbe.", "Havel") is None
    assert refused("Remember that it ends in the Havel, not in the Elbe.", CORRECTION, max_quoted=0) is None


def test_arguments_of_a_call_are_the_answer_too() -> None:
    arguments = '{"city": "Porto Alegre", "from": "2 May", "to": "9 May", "beds": 2}'
    response = {"content": None, "tool_calls": [{"name": "find", "arguments": arguments}]}
    assert (refused(f"Call it with {arguments}.", response=response) or "").startswith("leak")
    assert refused("Name the country beside the city.", response=response) is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Write to anna.berg+shop@mail.example now.", "an e-mail address"),
        ("Call +49 (30) 901820-44 first.", "a telephone number"),
        ("Call 555-123-4567 first.", "a telephone number"),
        ("Use the key sk-abcd1234efgh5678ijkl.", "a key or password"),
        ("The password is hunter22.", "a key or password"),
        ("Set api_key=0a1b2c3d.", "a key or password"),
        ("Take 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b for it.", "a key or password"),
        ("-----BEGIN PRIVATE KEY-----", "a key or password"),
        ("Write the date as 2026-03-04.", None),
        ("The years 2019 - 2024 matter.", None),
        ("From 2026-03-04 to 2026-04-05, in this order.", None),
        ("Round to 3.14159265 and stop.", None),
        ("Say that the password is required.", None),
        ("Ask for the password before the name.", None),
        ("Say which token is missing.", None),
        ("Use a well-known-and-rather-long-hyphenated-name.", None),
        ("Mention @everyone only once.", None),
    ],
)
def test_private_data_are_found_by_their_form(text: str, kind: str | None) -> None:
    assert private(text) == kind


def turn(content: str = ANSWER) -> Turn:
    return Turn(
        turn_id="t",
        messages=[{"role": "user", "content": "Where does the Spree end?"}],
        tools=[],
        response={"content": content},
        sampling={},
        token_source="none",
        prompt_ids=b"",
        response_ids=b"",
        response_logprobs=b"",
    )


def test_a_refused_hint_is_a_vote_with_its_reason_and_never_the_chosen_one() -> None:
    answered = Answered(turn_id="t", session_id="s", next_states=(NextState(kind="user_reply", content="Hm."),))
    texts = [
        f"HINT: {ANSWER}",
        "HINT: Ask anna@mail.example about the mouth of the river, please.",
        "HINT: Name the mouth first.",
    ]
    opinion = hint_by_answers(HintSpec(), answered, turn(), "digest", "model", [Answer(text=text) for text in texts])
    assert opinion.result.text == "Name the mouth first."
    assert [vote.score for vote in opinion.votes] == [0, 0, 1]
    reasons = [vote.explanation or "" for vote in opinion.votes]
    assert reasons[0].startswith("leak: ")
    assert reasons[1] == "private: it holds an e-mail address"
    assert "anna" not in reasons[1]
    none = hint_by_answers(HintSpec(), answered, turn(), "digest", "model", [Answer(text=text) for text in texts[:2]])
    assert (none.result.status, none.result.text) == ("none", None)
    assert "leak" in (none.result.reason or "")
    allowed = HintSpec(allow_private=True, max_quoted=0)
    most = hint_by_answers(allowed, answered, turn(), "digest", "model", [Answer(text=text) for text in texts])
    assert [vote.score for vote in most.votes] == [1, 1, 1]


def test_a_hint_that_a_pattern_finds_is_refused_for_the_same_reasons() -> None:
    states = (NextState(kind="user_reply", content="Next time mail boss@shop.example. Next time name the price."),)
    answered = Answered(turn_id="t", session_id="s", next_states=states)
    spec = HintSpec(patterns=[r"(mail [^ ]+)", r"(name the price)"], votes=0)
    opinion = hint_by_rules(spec, answered)
    assert opinion is not None
    assert opinion.result.text == "name the price"
    assert [vote.explanation for vote in opinion.votes] == ["private: it holds an e-mail address", "name the price"]


def test_a_hint_may_stand_in_the_last_tool_result_since_the_last_user_message() -> None:
    user, call = {"role": "user", "content": "a"}, {"role": "assistant", "content": None}
    first, last = ({"role": "tool", "content": text} for text in ("one", "two"))
    messages = [user, call, first, last]
    hinted = with_hint(messages, "Be brief.", "tool_result")
    assert hinted == [user, call, first, {"role": "tool", "content": "two\n\nBe brief."}]
    asked_since = [*messages, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    assert with_hint(asked_since, "Be brief.", "tool_result")[:-1] == asked_since[:-1]
    assert with_hint(asked_since, "Be brief.", "tool_result")[-1]["content"] == "c\n\nBe brief."
    assert with_hint(messages, "Be brief.")[0]["content"] == "a\n\nBe brief."


@pytest.mark.parametrize(
    "change",
    [{"min_words": 2}, {"max_quoted": 0}, {"allow_private": True}, {"select": "gain"}, {"place": "tool_result"}],
)
def test_what_is_asked_of_hints_is_in_the_digest(change: dict[str, Any]) -> None:
    assert recipe_named("combine", {"hint": change}).digest() != recipe_named("combine").digest()
