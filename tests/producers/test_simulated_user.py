"""The simulated user likes what he says he likes, and the demo's rules read exactly what he says."""

from __future__ import annotations

import re

import pytest

from producers.simulated_user.questions import HELD_OUT_QUESTIONS, TRAINING_QUESTIONS, QuestionStream
from producers.simulated_user.taste import (
    DISLIKED_PATTERN,
    HINT_PATTERN,
    LIKED_PATTERN,
    REACTIONS,
    on_topic,
    opinion,
)

QUESTION = "Why do cats purr?"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Cats purr when they feel safe and content.", "liked"),
        ('They say "cats purr when content."', "liked"),
        ("Cats purr " + "very " * 23 + "often.", "too_long"),
        ("Cats purr " + "very " * 22 + "often.", "liked"),
        ("Cats purr often.", "too_short"),
        ("", "too_short"),
        ("Cats purr when they feel safe and", "unfinished"),
        ("It happens when they feel safe and content.", "off_topic"),
    ],
)
def test_he_likes_finished_answers_of_4_to_25_words_on_topic(answer: str, expected: str) -> None:
    assert opinion(QUESTION, answer) == expected


def test_words_that_every_question_has_do_not_make_an_answer_on_topic() -> None:
    assert not on_topic("What is a volcano?", "What that is depends.")
    assert on_topic("How do I bake a potato?", "Baking takes an hour.")
    assert on_topic("What do bees eat?", "A bee lives on nectar.")
    assert not on_topic("What do bees eat?", "They eat nectar.")
    assert not on_topic("What do owls eat?", "An ox eats grass.")


def test_the_two_sets_of_questions_share_nothing() -> None:
    assert len(TRAINING_QUESTIONS) == len(set(TRAINING_QUESTIONS)) == 90
    assert len(HELD_OUT_QUESTIONS) == len(set(HELD_OUT_QUESTIONS)) == 42
    assert not set(TRAINING_QUESTIONS) & set(HELD_OUT_QUESTIONS)


def test_the_stream_asks_each_question_once_a_pass_and_repeats_by_its_seed() -> None:
    first, again, other = QuestionStream(1), QuestionStream(1), QuestionStream(2)
    asked = [first.next() for _ in TRAINING_QUESTIONS]
    assert sorted(asked) == sorted(TRAINING_QUESTIONS)
    assert asked == [again.next() for _ in TRAINING_QUESTIONS]
    assert asked != [other.next() for _ in TRAINING_QUESTIONS]


@pytest.mark.parametrize(("name", "reaction"), REACTIONS.items())
def test_the_rules_read_each_reaction(name: str, reaction: str) -> None:
    assert bool(re.search(LIKED_PATTERN, reaction, re.IGNORECASE)) is (name == "liked")
    assert bool(re.search(DISLIKED_PATTERN, reaction, re.IGNORECASE)) is (name != "liked")
    hint = re.search(HINT_PATTERN, reaction)
    assert (hint is None) is (name == "liked")
    if hint:
        assert hint.group(1).startswith("Answer")
        assert hint.group(1).endswith("words.")
