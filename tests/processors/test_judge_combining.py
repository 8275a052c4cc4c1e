"""Judges of several kinds on one turn, and rules in Python: each kind has one voice, and silence is none."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from processors.evaluators import rules
from processors.evaluators.combining import Kind, combine
from processors.evaluators.inputs import Answered, Feedback, NextState
from processors.evaluators.judge import reward_by_answers, reward_by_rules
from processors.evaluators.llm_judge import Answer
from processors.evaluators.rules import Finding
from processors.evaluators.server import TransientFault
from schemas.recipes import InvalidRecipe, JudgeSpec, recipe_named

UP, DOWN = Feedback(thumbs="up", author="anna"), Feedback(thumbs="down", author="ben")
FAILED = NextState(kind="terminal_output", exit_code=2)


def after(*states: NextState, feedback: tuple[Feedback, ...] = ()) -> Answered:
    return Answered(turn_id="t", session_id="s", next_states=states, feedback=feedback)


@pytest.mark.parametrize(
    ("rule", "said", "value", "status", "kind"),
    [
        ("first", {"CODE": -1, "LLM": 1}, -1, "scored", "CODE"),
        ("majority", {"HUMAN": 1, "CODE": -1, "LLM": -1}, -1, "scored", "CODE"),
        ("majority", {"HUMAN": 1, "LLM": -1}, 0, "tie", "HUMAN"),
        ("majority", {"HUMAN": 1, "CODE": 0, "LLM": -1}, 0, "tie", "HUMAN"),
        ("majority", {"CODE": 0, "LLM": 0}, 0, "scored", "CODE"),
        ("all_agree", {"HUMAN": 1, "CODE": 1, "LLM": 1}, 1, "scored", "HUMAN"),
        ("all_agree", {"CODE": 1, "LLM": -1}, None, "abstained", "CODE"),
        ("all_agree", {"LLM": -1}, -1, "scored", "LLM"),
        ("majority", {}, None, "abstained", None),
    ],
)
def test_each_kind_has_one_voice(rule: Any, said: dict[Kind, float], value: Any, status: str, kind: str) -> None:
    one = combine(rule, said)
    assert (one.value, one.status, one.kind) == (value, status, kind)


def test_a_model_is_asked_beside_people_and_code_only_where_the_recipe_combines() -> None:
    answered = after(FAILED, feedback=(UP,))
    first = reward_by_rules(JudgeSpec(), answered)
    assert first is not None
    assert (first.result.value, first.result.annotator_kind, len(first.votes)) == (1.0, "HUMAN", 1)
    assert reward_by_rules(JudgeSpec(combine="majority"), answered) is None
    without = reward_by_rules(JudgeSpec(combine="majority", votes=0), answered)
    assert without is not None
    assert (without.result.value, without.result.status) == (0.0, "tie")
    assert [vote.annotator_kind for vote in without.votes] == ["HUMAN", "CODE"]


def model_says(*words: str | None) -> list[Answer]:
    return [Answer(text=word) if word else Answer(fault=TransientFault("away")) for word in words]


def test_all_votes_of_all_kinds_are_kept_and_each_kind_counts_once() -> None:
    """Three votes of a model are one voice: they do not outvote a person and a test together."""
    answered = after(FAILED, feedback=(DOWN,))
    opinion = reward_by_answers(
        JudgeSpec(combine="majority"), answered, "digest", "model", model_says("good", "good", "good")
    )
    assert (opinion.result.value, opinion.result.status, opinion.result.annotator_kind) == (-1.0, "scored", "HUMAN")
    assert [vote.score for vote in opinion.votes] == [-1, -1, 1, 1, 1]
    assert (opinion.result.votes_valid, opinion.result.votes_total) == (5, 5)
    assert opinion.result.explanation.startswith("majority of HUMAN -1, CODE -1, LLM +1; ben: thumbs down; ")


@pytest.mark.parametrize(
    ("words", "value", "status", "retried"),
    [
        (("bad", "bad", "good"), -1.0, "scored", False),
        (("good", "good", "bad"), None, "abstained", False),
        (("bad", None, None), -1.0, "scored", True),
        ((None, None, None), -1.0, "scored", True),
    ],
)
def test_a_model_that_cannot_tell_is_no_voice_and_is_asked_again(
    words: tuple[str | None, ...], value: float | None, status: str, retried: bool
) -> None:
    opinion = reward_by_answers(JudgeSpec(combine="all_agree"), after(FAILED), "digest", "model", model_says(*words))
    assert (opinion.result.value, opinion.result.status) == (value, status)
    assert (opinion.retry_reason is not None) == retried


def sour(answered: Answered) -> Finding | None:
    """Bad where the reply is of one word."""
    text = answered.next_states[0].content or ""
    return Finding(-1, "one word") if len(text.split()) == 1 else None


def raising(answered: Answered) -> Finding | None:
    raise KeyError(answered.turn_id)


def off_scale(_: Answered) -> Any:
    return Finding(7, "very good")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The functions above as another package's rules."""
    entries = [EntryPoint(name, f"{__name__}:{name}", rules.GROUP) for name in ("sour", "raising", "off_scale")]
    entries.append(EntryPoint("gone", "no_such_module:rule", rules.GROUP))
    entries.append(EntryPoint("number", f"{__name__}:UP", rules.GROUP))
    monkeypatch.setattr(rules, "entry_points", lambda group: entries)
    rules.rule_named.cache_clear()
    yield
    rules.rule_named.cache_clear()


def functions(*names: str) -> JudgeSpec:
    return JudgeSpec(functions=names, votes=0)


@pytest.mark.usefixtures("installed")
def test_a_rule_in_python_votes_by_its_name_and_is_silent_where_it_cannot_tell() -> None:
    opinion = reward_by_rules(functions("sour"), after(NextState(kind="user_reply", content="Hm.")))
    assert opinion is not None
    (vote,) = opinion.votes
    assert (vote.annotator_kind, vote.annotator, vote.score, vote.explanation) == ("CODE", "sour", -1, "one word")
    silent = reward_by_rules(functions("sour"), after(NextState(kind="user_reply", content="Well, hm.")))
    assert silent is not None
    assert (silent.result.status, silent.votes) == ("abstained", ())


@pytest.mark.usefixtures("installed")
def test_a_rule_that_fails_is_an_invalid_vote_and_the_next_one_is_asked() -> None:
    opinion = reward_by_rules(
        functions("raising", "off_scale", "sour"), after(NextState(kind="user_reply", content="Hm."))
    )
    assert opinion is not None
    assert opinion.result.value == -1.0
    assert [(vote.status, vote.score) for vote in opinion.votes] == [
        ("invalid", None),
        ("invalid", None),
        ("valid", -1),
    ]
    assert "KeyError" in (opinion.votes[0].explanation or "")
    assert "score=7" in (opinion.votes[1].raw or "")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("sweet", "no package brings a rule 'sweet' .there are: gone, number, off_scale, raising, sour"),
        ("gone", "'gone' cannot be loaded .ModuleNotFoundError"),
        ("number", "'number' is a Feedback, not a function"),
    ],
)
def test_a_rule_that_is_not_there_is_told_by_name(name: str, match: str) -> None:
    with pytest.raises(InvalidRecipe, match=match):
        reward_by_rules(functions(name), after(NextState(kind="user_reply", content="Hm.")))


def test_a_recipe_names_how_kinds_combine_and_only_then_has_another_digest() -> None:
    plain = recipe_named("binary-rl")
    assert recipe_named("binary-rl", {"judge": {"combine": "first", "functions": []}}).digest() == plain.digest()
    for change in ({"combine": "majority"}, {"functions": ["tool-error"]}):
        assert recipe_named("binary-rl", {"judge": change}).digest() != plain.digest()
    with pytest.raises(InvalidRecipe, match=r"judge\.functions are asked by the code judge"):
        recipe_named("binary-rl", {"judge": {"code": False, "functions": ["tool-error"]}})
