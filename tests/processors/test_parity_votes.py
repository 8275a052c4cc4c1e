"""Votes, verdicts and hints against a peer's parsers.

The peer marks its answers with a box and with brackets, ours with lines; the texts are put into our form mark for mark.
Where the peer finds several marks it takes the last. Ours takes none of them: an answer that contradicts itself is no
vote, and which mark was meant is not guessed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from processors.evaluators.hint import hint_by_model
from processors.evaluators.inputs import Answered, NextState, Turn
from processors.evaluators.llm_judge import Answer, Panel, hint_vote, verdict_vote
from processors.evaluators.votes import tally
from schemas.recipes import HintSpec

BOX = re.compile(r"\\boxed\{([^}]*)\}")
LABELS = {"1": "good", "+1": "good", "-1": "bad", "0": "neutral"}

CONTRADICTS_ITSELF = {"score_04", "judge_07", "judge_12"}
"""Two verdicts, two hints, a hint within a hint."""

SCORELESS_HINT = {"judge_03", "judge_13", "judge_17"}
"""A hint without a valid score beside it. In our form a hint is its own yes, so there is nothing to put it into."""

LEAST_CHARACTERS = 11
"""The peer wants more than ten, ours (`min_characters`) at least so many."""

TURN = Turn(
    turn_id="t",
    messages=[{"role": "user", "content": "What is the time?"}],
    tools=[],
    response={"role": "assistant", "content": "Noon."},
    sampling={},
    token_source="none",
    prompt_ids=b"",
    response_ids=b"",
    response_logprobs=b"",
)


@pytest.fixture(scope="module")
def cases() -> dict[str, dict[str, Any]]:
    path = Path(__file__).resolve().parents[3] / "shared" / "reference" / "12_votes_parse.json"
    if not path.is_file():
        pytest.skip(f"the golden numbers are not here ({path})")
    return {case["name"]: case for case in json.loads(path.read_text())["cases"]}


def of(cases: dict[str, dict[str, Any]], kind: str) -> list[tuple[str, Any, Any]]:
    """Name, inputs and outputs of each case of a kind."""
    found = [(name, case["inputs"], case["outputs"]) for name, case in cases.items() if name.startswith(f"{kind}_")]
    assert found
    return found


def verdict_in_our_form(text: str) -> str:
    return BOX.sub(lambda box: f"\nVERDICT: {LABELS.get(box[1], 'no label: ' + box[1])}\n", text)


def hint_in_our_form(text: str) -> str:
    """A box of 1 is said by the hint itself, one of -1 by NONE; the last box is the peer's score."""
    boxes = BOX.findall(text)
    hints = BOX.sub("", text).replace("[HINT_START]", "\nHINT: ").replace("[HINT_END]", "\n")
    return hints + ("\nNONE\n" if boxes and boxes[-1] == "-1" else "")


def test_votes_add_up_alike_but_nobodys_vote_is_no_reward(cases: dict[str, dict[str, Any]]) -> None:
    for name, inputs, outputs in of(cases, "vote"):
        counted = tally(inputs["votes"], quorum=1)
        if any(vote is not None for vote in inputs["votes"]):
            assert counted.value == outputs["result"], name
        else:
            assert (counted.value, outputs["result"]) == (None, 0.0), name


def test_a_verdict_is_read_alike_but_for_one_that_contradicts_itself(cases: dict[str, dict[str, Any]]) -> None:
    for name, inputs, outputs in of(cases, "score"):
        vote = verdict_vote(Answer(text=verdict_in_our_form(inputs["text"]), digest="d"), "judge", "p")
        if name in CONTRADICTS_ITSELF:
            assert (vote.status, outputs["score"]) == ("invalid", -1)
        else:
            assert vote.score == outputs["score"], name


def test_the_peers_own_marks_are_no_declared_answer_here(cases: dict[str, dict[str, Any]]) -> None:
    """A box in a judge's prose is a number in prose."""
    for name, inputs, _ in [*of(cases, "score"), *of(cases, "judge")]:
        text = inputs["text"]
        vote = verdict_vote(Answer(text=text, digest="d"), "judge", "p")
        assert (vote.status, vote.score, vote.raw) == ("invalid", None, text), name


def test_a_hint_is_read_alike_but_for_two_at_once(cases: dict[str, dict[str, Any]]) -> None:
    for name, inputs, outputs in of(cases, "judge"):
        if name in SCORELESS_HINT:
            assert outputs["score"] is None
            continue
        text = inputs["text"]
        cut = "[HINT_START]" in text and "[HINT_END]" not in text  # never closed: it ran into its limit
        vote = hint_vote(Answer(text=hint_in_our_form(text), cut=cut, digest="d"), "judge", "p", LEAST_CHARACTERS)
        theirs = outputs["hint"] if outputs["score"] == 1 and len(outputs["hint"]) >= LEAST_CHARACTERS else None
        if name in CONTRADICTS_ITSELF:
            assert vote.status == "invalid"
            assert theirs
        else:
            assert (vote.explanation if vote.score == 1 else None) == theirs, name


async def test_the_same_hint_is_chosen(cases: dict[str, dict[str, Any]]) -> None:
    """The longest; the first of equally long ones."""
    answered = Answered(turn_id="t", session_id="s", next_states=(NextState(kind="user_reply", content="Hm."),))
    for name, inputs, outputs in of(cases, "hint"):
        texts = [f"HINT: {vote['hint']}" if vote["score"] == 1 else "NONE" for vote in inputs["votes"]]

        async def ask(*_: Any, texts: list[str] = texts, **__: Any) -> list[Answer]:
            return [Answer(text=text, digest="d") for text in texts]

        panel = cast("Panel", SimpleNamespace(ask=ask, server=SimpleNamespace(model="judge")))
        spec = HintSpec(votes=len(texts), min_characters=LEAST_CHARACTERS)
        opinion = await hint_by_model(spec, answered, TURN, panel, characters=1000)
        assert opinion.result.text == (outputs["selected"] or {}).get("hint"), name


def test_every_case_has_a_counterpart(cases: dict[str, dict[str, Any]]) -> None:
    assert {name.split("_")[0] for name in cases} == {"vote", "score", "judge", "hint"}
    assert set(cases) >= CONTRADICTS_ITSELF | SCORELESS_HINT
