"""Votes: only declared answers count, the majority decides, and nothing is made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processors.evaluators.llm_judge import Answer, hint_vote, verdict_vote
from processors.evaluators.server import TransientFault
from processors.evaluators.votes import tally


@pytest.mark.parametrize(
    ("scores", "status", "value"),
    [
        ([1, 1, -1], "scored", 1.0),
        ([-1, -1, None], "scored", -1.0),
        ([0, 0, 1], "scored", 0.0),
        ([1, -1, None], "tie", 0.0),
        ([1, -1, 0], "tie", 0.0),
        ([1, None, None], "abstained", None),
        ([None, None, None], "abstained", None),
        ([], "abstained", None),
    ],
)
def test_the_majority_of_the_valid_votes_decides(scores: list[int | None], status: str, value: float | None) -> None:
    counted = tally(scores, quorum=2)
    assert (counted.status, counted.value) == (status, value)
    assert counted.valid == sum(score is not None for score in scores)
    assert counted.total == len(scores)


@given(st.lists(st.sampled_from([1, 0, -1, None]), max_size=9), st.integers(1, 9), st.randoms())
def test_the_order_of_votes_does_not_matter(scores: list[int | None], quorum: int, chance: Any) -> None:
    shuffled = list(scores)
    chance.shuffle(shuffled)
    assert tally(scores, quorum=quorum) == tally(shuffled, quorum=quorum)
    mirrored = tally([None if s is None else -s for s in scores], quorum=quorum)
    straight = tally(scores, quorum=quorum)
    assert mirrored.value == (None if straight.value is None else -straight.value)


def test_votes_agree_with_a_peer_where_there_is_a_valid_one(shared_dir: Path) -> None:
    cases = json.loads((shared_dir / "reference" / "12_votes_parse.json").read_text())["cases"]
    votes = [case for case in cases if "votes" in case["inputs"] and "result" in case["outputs"]]
    assert votes
    for case in votes:
        given_votes = case["inputs"]["votes"]
        counted = tally(given_votes, quorum=1)
        if all(vote is None for vote in given_votes):
            # The peer gives 0.0 where nobody answered; to us that is no reward at all.
            assert case["outputs"]["result"] == 0.0
            assert counted.value is None
        else:
            assert counted.value == case["outputs"]["result"], case["name"]


@pytest.mark.parametrize(
    "text",
    [
        "7",
        "0.8x",
        '{"score": 0.',
        "There are 5 reasons, my score is 1",
        "not excellent",
        "not good",
        "Good",
        "good.",
        "good bad",
        "The answer is good",
        "",
        "VERDICT: not good",
        "VERDICT: 1",
        "VERDICT: good\nVERDICT: bad",
        "VERDICT: good\nVERDICT: good",
        "I would say VERDICT: good",
        "verdict: good",
    ],
)
def test_anything_but_a_declared_answer_is_invalid_and_kept(text: str) -> None:
    vote = verdict_vote(Answer(text=text, digest="d"), "judge", "p")
    assert (vote.status, vote.score, vote.raw) == ("invalid", None, text)
    assert vote.explanation


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("good", 1),
        (" bad\n", -1),
        ("neutral", 0),
        ("The user thanks, so it helped.\nVERDICT: good", 1),
        ("VERDICT: bad \nThat is all.", -1),
    ],
)
def test_a_declared_answer_is_a_vote(text: str, score: int) -> None:
    vote = verdict_vote(Answer(text=text, digest="d"), "judge", "p")
    assert (vote.status, vote.score, vote.raw) == ("valid", score, text)


def test_a_cut_answer_is_invalid_even_if_it_reads_well() -> None:
    assert verdict_vote(Answer(text="good", cut=True), "judge", "p").status == "invalid"
    assert hint_vote(Answer(text="HINT: say it in one short senten", cut=True), "judge", "p", 10).status == "invalid"


def test_no_answer_is_an_error_without_score_or_text() -> None:
    vote = verdict_vote(Answer(fault=TransientFault("no answer within 5 s")), "judge", "p")
    assert (vote.status, vote.score, vote.raw, vote.explanation) == ("error", None, None, "no answer within 5 s")


@pytest.mark.parametrize(
    ("text", "status", "score"),
    [
        ("HINT: Answer in one short sentence.", "valid", 1),
        ("The user wants less.\nHINT: Answer in one\nshort sentence.", "valid", 1),
        ("HINT: ten chars", "valid", 1),
        ("HINT: short", "valid", 0),
        ("NONE", "valid", 0),
        (" NONE\n", "valid", 0),
        ("none", "invalid", None),
        ("HINT: Be brief, please. \nHINT: Be long, please.", "invalid", None),
        ("NONE\nHINT: Answer in one short sentence.", "invalid", None),
        ("HINT: Answer in one short sentence.\nNONE", "invalid", None),
        ("I have no hint: NONE", "invalid", None),
        ("Answer in one short sentence.", "invalid", None),
    ],
)
def test_hint_answers(text: str, status: str, score: int | None) -> None:
    vote = hint_vote(Answer(text=text, digest="d"), "judge", "p", min_characters=9)
    assert (vote.status, vote.score, vote.raw) == (status, score, text)
    if score == 1:
        assert vote.explanation
        assert "HINT" not in vote.explanation
