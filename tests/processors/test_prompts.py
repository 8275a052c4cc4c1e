"""The page that shows the prompts is in step with their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hindstream.judging.page import HINTS, KINDS, PAGE, made, page_with
from processors.evaluators import prompts
from processors.evaluators.llm_judge import Answer, hint_vote, verdict_vote
from processors.evaluators.prompts import LABELS
from processors.evaluators.quality import pairs

FILES = sorted(Path(prompts.__file__).parent.glob("*.txt"))


def test_every_prompt_is_on_the_page_as_it_is() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert len(FILES) == 10
    for file in FILES:
        assert file.read_text(encoding="utf-8").rstrip("\n") in page, f"run python -m {made.__module__}"
        assert f"prompts/{file.name}" in page


def test_the_page_is_made_anew_to_the_same_text() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page_with(made(), page) == page, f"run python -m {made.__module__}"
    with pytest.raises(ValueError, match="lacks the lines"):
        page_with(made(), "a page without marks")


def test_each_outcome_has_an_example_and_its_answer_is_a_valid_vote() -> None:
    text = made()
    labels = {pair.id: pair.label for pair in pairs()}
    for kind in KINDS:
        section = text.split(f"(`{kind}`)")[1].split("###")[0]
        for label in LABELS:
            assert f"| `{label}` |" in section
            assert verdict_vote(Answer(text=label), "model", "digest").score == LABELS[label]
        told = [hint_vote(Answer(text=answer), "model", "digest", 10) for _, answer in HINTS[kind]]
        assert [(vote.status, vote.score) for vote in told] == [("valid", 1), ("valid", 0)]
        assert [labels[pair_id] == "bad" for pair_id, _ in HINTS[kind]] == [True, False]
