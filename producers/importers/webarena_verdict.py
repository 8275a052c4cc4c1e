"""What WebArena's evaluator said of a run: `eval_result.json`, found beside its HAR file by name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from producers.importers.base import RefusedRow
from producers.importers.json_scan import excerpt_of, json_type, read_text
from schemas.text import sanitise

_ANSWER_EVALUATOR = "AgentResponseEvaluator"


@dataclass(frozen=True)
class Evaluation:
    """The score in [0, 1], who gave it in words, and the agent's final answer where the evaluator quotes it."""

    score: float
    explanation: str
    answer: str | None


def evaluation_beside(path: Path) -> tuple[Evaluation | None, RefusedRow | None]:
    """The evaluation of the HAR file at `path`, or why it does not go in; neither where there is no such file."""
    prefix, found, _ = path.name.rpartition("network")
    beside = path.with_name(f"{prefix if found else ''}eval_result.json")
    try:
        text = read_text(beside)
    except OSError:
        return None, None  # a run that was not evaluated has none
    try:
        result = json.loads(text)
    except (ValueError, RecursionError) as err:
        return None, RefusedRow(beside.name, 1, f"the evaluator's file is not JSON: {err}", excerpt_of(text[:160]))
    score = result.get("score") if isinstance(result, dict) else None
    if isinstance(score, bool) or not isinstance(score, (int, float)) or not 0 <= score <= 1:
        reason = f"`score` is a JSON {json_type(score)}, not a number from 0 to 1: no verdict goes in"
        return None, RefusedRow(beside.name, 1, reason, excerpt_of(score))
    evaluators = result.get("evaluators_results")
    evaluators = [one for one in evaluators if isinstance(one, dict)] if isinstance(evaluators, list) else []
    said = [f"{one.get('evaluator_name')}: {one.get('status')} {one.get('score')}" for one in evaluators]
    words = "; ".join([f"{result.get('status')} {score:g}", *said])
    return Evaluation(float(score), sanitise(words)[0], _answer(evaluators)), None


def _answer(evaluators: list[dict[str, Any]]) -> str | None:
    for one in evaluators:
        actual = one.get("actual")
        if one.get("evaluator_name") == _ANSWER_EVALUATOR and isinstance(actual, str) and actual.strip():
            return actual
    return None
