"""The labelled pairs, and what is measured with them: known answers give known figures."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from typer.testing import CliRunner

from hindstream.cli.main import app
from hindstream.judging.asking import Cost, by_code, by_llm
from hindstream.judging.figures import as_json, quality
from processors.evaluators.prompts import LABELS
from processors.evaluators.quality import Pair, pairs
from processors.evaluators.rules import rule_names
from schemas.recipes import JudgeSpec
from tests.processors.evaluating import FakeServer, server

PAIRS = pairs()
OURS = ("tool-error", "test-report", "terminal-error", "window-error", "reply-words")


def test_the_pairs_are_many_balanced_and_none_is_there_twice() -> None:
    assert len(PAIRS) >= 200
    cells = Counter((pair.kind, pair.label) for pair in PAIRS)
    assert len(cells) == 5 * 3
    assert len(set(cells.values())) == 1
    assert len({pair.id for pair in PAIRS}) == len(PAIRS)
    assert len({(pair.asked, pair.answered, pair.observed) for pair in PAIRS}) == len(PAIRS)


@pytest.mark.parametrize(
    "about",
    [
        "polite change request",
        "the word error in a result that worked",
        "same request rephrased",
        "change of subject",
        "sarcasm",
        "an apology that carries a complaint",
        "partial success",
        "timeout",
        "expected failures",
        "it undoes what was done before",
    ],
)
def test_the_hard_ones_are_among_them(about: str) -> None:
    assert any(pair.about == about for pair in PAIRS)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("{", "line 2: "),
        ('{"id": "x"}', "line 2: .*missing required field"),
        ('{"id": "x", "kind": "user_reply", "label": "fine"}', "line 2: .*label"),
    ],
)
def test_a_line_that_is_no_pair_is_named(tmp_path: Path, line: str, match: str) -> None:
    file = tmp_path / "pairs.jsonl"
    good = json.dumps(
        {"id": "a", "kind": "user_reply", "label": "good", "about": "", "asked": "", "answered": "", "observed": "ok"}
    )
    file.write_text(f"{good}\n{line}\n")
    with pytest.raises(ValueError, match=match):
        pairs(file)


def test_code_is_measured_and_the_page_tells_the_same_figures() -> None:
    page = (Path(__file__).parents[2] / "docs/judges.md").read_text()
    for name, functions in (("verdicts and exit codes alone", ()), ("with all five rules", OURS)):
        figures = quality("code", PAIRS, *by_code(JudgeSpec(functions=functions), PAIRS))
        assert set(figures.statuses) == {"scored", "abstained"}
        assert sum(figures.confusion.values()) == len(PAIRS)
        share, kappa = figures.all, figures.kappa
        assert share.accuracy is not None
        assert kappa is not None
        assert len(figures.mistakes) == share.scored - share.right
        row = f"| {name} | {share.scored} | {share.right} | {share.accuracy:.1%} | {kappa:.2f} |"
        assert row in page, row


def test_rules_are_never_wrong_where_words_mislead() -> None:
    """A result that worked and mentions errors, expected failures, a polite wish: not the opposite of what is right."""
    results, _ = by_code(JudgeSpec(functions=OURS), PAIRS)
    for pair, result in zip(PAIRS, results, strict=True):
        if "the word error" in pair.about or pair.about.startswith(("polite", "expected failures")):
            assert result.value in (None, float(pair.score)), pair.id


def pair_of(body: dict[str, Any]) -> Pair:
    """The pair that a request is about."""
    shown = body["messages"][1]["content"]
    return next(pair for pair in PAIRS if pair.asked in shown and pair.observed in shown)


async def asked(reply: Any, chosen: list[Pair], **judge: Any) -> tuple[dict[str, Any], FakeServer]:
    fake = FakeServer(reply)
    async with fake.running():
        answers = await by_llm(JudgeSpec(**judge), chosen, server(fake.url, timeout_s=5.0), characters=4800)
    return as_json(quality("policy", chosen, *answers)), fake


async def test_a_judge_that_knows_all_is_right_in_all() -> None:
    figures, fake = await asked(lambda body: pair_of(body).label, PAIRS, votes=1, quorum=1)
    assert (figures["accuracy"], figures["kappa"], figures["scored"]) == (1.0, 1.0, len(PAIRS))
    assert figures["mistakes"] == []
    assert figures["cost"]["calls"] == len(fake.requests) == len(PAIRS)
    assert figures["cost"]["prompt_tokens"] is None, "the server does not say, and nothing is made up"
    assert {share["accuracy"] for share in figures["by_kind"].values()} == {1.0}


async def test_a_judge_that_always_says_good_is_as_good_as_chance() -> None:
    figures, _ = await asked(lambda _: "good", PAIRS[:42], votes=2, quorum=1)
    assert figures["right"] == 14
    assert figures["accuracy"] == pytest.approx(1 / 3)
    assert figures["kappa"] == pytest.approx(0.0)
    assert {(one["label"], one["said"], one["pairs"]) for one in figures["confusion"]} == {
        (label, "good", 14) for label in LABELS
    }


async def test_silence_is_no_answer_and_a_tie_is_neutral() -> None:
    def reply(body: dict[str, Any]) -> Any:
        kind = pair_of(body).label
        if kind == "good":  # prose: no declared answer
            return "I think that it is good."
        if kind == "bad":  # away
            return web.json_response({"error": {"message": "busy"}}, status=503)
        return ["good", "bad"][body["seed"]]

    figures, _ = await asked(reply, PAIRS[:42], votes=2, quorum=2)
    assert figures["statuses"] == {"abstained": 14, "failed": 14, "tie": 14}
    assert (figures["scored"], figures["right"]) == (14, 14)
    assert {"label": "bad", "said": None, "pairs": 14} in figures["confusion"]


async def test_tokens_are_added_up_and_a_server_without_choices_is_asked_for_the_marker() -> None:
    def reply(body: dict[str, Any]) -> web.Response:
        if "structured_outputs" in body:
            return web.json_response({"error": {"message": "structured_outputs is unknown"}}, status=400)
        text = f"VERDICT: {pair_of(body).label}"
        choice = {"message": {"content": text}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice], "usage": {"prompt_tokens": 100, "completion_tokens": 4}})

    figures, _ = await asked(reply, PAIRS[:10], votes=3, quorum=2)
    assert figures["accuracy"] == 1.0
    assert figures["cost"]["calls"] == 30, "refusals are not answers"
    assert (figures["cost"]["prompt_tokens"], figures["cost"]["completion_tokens"]) == (3000, 120)


def test_no_pair_scored_has_no_accuracy() -> None:
    chosen = [pair for pair in PAIRS if pair.kind == "gui_change"]
    figures = quality("code", chosen, *by_code(JudgeSpec(), chosen))
    assert (figures.all.accuracy, figures.kappa, figures.cost.calls) == (None, None, 0)
    assert Cost().prompt_tokens == 0


def test_the_command_prints_tables_and_json() -> None:
    told = CliRunner().invoke(app, ["judge", "evaluate", "--limit", "42", "--json"])
    assert told.exit_code == 0, told.output
    figures = json.loads(told.output)
    assert (figures["judge"], figures["pairs"], len(figures["by_kind"])) == ("code", 42, 5)
    shown = CliRunner().invoke(app, ["judge", "evaluate"])
    assert "kappa" in shown.output
    assert "test_verdict" in shown.output
    listed = CliRunner().invoke(app, ["judge", "rules"])
    assert listed.output.split() == rule_names()


@pytest.mark.vllm
async def test_a_real_small_model_gives_declared_answers(vllm_server: str) -> None:
    """Whether it is right is another matter: it is far too small to judge."""
    chosen = PAIRS[::21]
    answers = await by_llm(JudgeSpec(votes=1, quorum=1), chosen, server(vllm_server), characters=1500)
    figures = as_json(quality("small", chosen, *answers))
    assert figures["statuses"] == {"scored": len(chosen)}
    assert figures["cost"]["prompt_tokens"] > len(chosen) * 50
