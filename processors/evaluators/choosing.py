"""Choosing one of several accepted hints by what the teacher makes of each.

What the server answers is kept: the teacher's own evaluation, which comes next, pays for the chosen hint no second
time. Where the server reads its prefix cache beside prompt log-probs (`processors.evaluators.prompt_scores`), the first
hint is scored before the others, which then find what they share with it; elsewhere each is computed whole, all at
once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from processors.evaluators.completion import Outcome
from processors.evaluators.hint import HintResult
from processors.evaluators.inputs import Turn
from processors.evaluators.kept_scores import Asking
from processors.evaluators.score_reading import TeacherFailed
from processors.evaluators.teacher import TeacherScores, own_scores, score_under_hint
from processors.evaluators.votes import Vote
from processors.evaluators.wanted import Wanted
from schemas.arrays import unpack_ids
from schemas.recipes import Recipe


@dataclass(frozen=True)
class Chosen:
    """A hint, and why this one."""

    text: str
    why: str


def accepted_hints(votes: Sequence[Vote]) -> list[str]:
    """The different hints that a model's votes brought, the earliest first."""
    texts = [vote.explanation for vote in votes if vote.annotator_kind == "LLM" and vote.score == 1]
    return list(dict.fromkeys(text for text in texts if text))


def asks_teacher(recipe: Recipe, outcome: Outcome) -> bool:
    """Whether `outcome` is a hint that the teacher must still choose among several."""
    if recipe.hint is None or recipe.hint.select == "longest" or not isinstance(outcome.result, HintResult):
        return False
    return outcome.result.annotator_kind == "LLM" and len(accepted_hints(outcome.votes)) > 1


async def choose(
    rule: Literal["overlap", "gain"],
    hints: Sequence[str],
    turn: Turn,
    asking: Asking,
    wanted: Wanted,
) -> Chosen:
    """The hint with the highest measure, of equal ones the first.

    "gain": mean over response tokens of teacher minus behaviour log-prob, nats a token. "overlap": mean share of the
    teacher's `top_k` tokens under the hint that are among the policy's own `top_k` without it. A hint that the teacher
    cannot score is passed over; where it can score none, the longest is taken and the teacher's evaluation says why.

    Raises:
        TransientFault: no answer now.
    """
    scored: list[TeacherScores | BaseException] = []
    waiting = list(hints)
    while waiting:
        # None: whether the server reads its cache is not known before its first answer.
        at_once = 1 if not scored and asking.teacher.scores_ids is not False else len(waiting)
        now, waiting = waiting[:at_once], waiting[at_once:]
        asked = (score_under_hint(asking, turn, hint, wanted) for hint in now)
        scored += await asyncio.gather(*asked, return_exceptions=True)
    own: TeacherScores | None = None
    measures: list[tuple[float, str]] = []
    faults = []
    for hint, scores in zip(hints, scored, strict=True):
        if isinstance(scores, TeacherFailed):
            faults.append(str(scores))
        elif isinstance(scores, BaseException):
            raise scores
        elif rule == "gain":
            if scores.mean_gain is not None:
                measures.append((scores.mean_gain, hint))
        else:
            try:
                response = unpack_ids(turn.response_ids).tolist()
                own = own or await own_scores(asking, turn, response, wanted.top_k)
            except TeacherFailed as fault:
                faults.append(f"the policy's own tokens: {fault}")
                break
            measures.append((overlap(scores.topk_ids, own.topk_ids, wanted.top_k), hint))
    if not measures:
        return Chosen(max(hints, key=len), f"the longest: the teacher scored none ({'; '.join(faults) or 'no gain'})")
    best, text = max(measures, key=lambda one: one[0])
    unit = " nats a token" if rule == "gain" else ""
    return Chosen(text, f"{rule} {best:.4f}{unit}, the best of {len(measures)}")


def overlap(teacher_TK: bytes, policy_TK: bytes, top_k: int) -> float:
    """Mean over T tokens of the share of the teacher's K ids that are among the policy's; both int32 [T, K]."""
    ours, theirs = (unpack_ids(packed).reshape(-1, top_k) for packed in (teacher_TK, policy_TK))
    return float(np.mean((ours[:, :, None] == theirs[:, None, :]).any(axis=2)))
