"""What is recorded already: evaluations whose every answer was given before are decided together, and nobody is asked.

A replay changes a part of its recipe and keeps most of the questions. Their answers are looked up for a whole batch in
one query; what is not found is left to the evaluator service, which asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from processors.evaluators.answers import question_digests, recorded_answers
from processors.evaluators.choosing import asks_teacher
from processors.evaluators.completion import Outcome
from processors.evaluators.config import EvaluatorsConfig
from processors.evaluators.deciding import by_answers, by_rules
from processors.evaluators.hint import HintResult
from processors.evaluators.inputs import Answered, Turn, load_answered, load_turns
from processors.evaluators.llm_judge import Answer, constraint_of, read_answer, samplings
from processors.evaluators.prompts import Prompt, Purpose, prompt_for
from processors.evaluators.queue import Claim, Signal
from processors.evaluators.teacher import recorded_scores, teacher_question
from processors.evaluators.wanted import Wanted
from schemas.recipes import HintSpec, JudgeSpec, Recipe


@dataclass(frozen=True, kw_only=True)
class Models:
    """Under which names answers were recorded; None: there is no such server. `characters`: what a judge is shown of a
    turn. `signals`: only these are decided."""

    judge: str | None
    teacher: str | None
    characters: int
    signals: tuple[Signal, ...]

    @classmethod
    def of(cls, config: EvaluatorsConfig) -> Models:
        """Those that `config` would ask."""
        return cls(
            judge=config.judge.model if config.judge else None,
            teacher=config.teacher.model if config.teacher else None,
            characters=config.judge_characters,
            signals=config.signals,
        )


def from_records(connection: Connection, claims: Sequence[Claim], recipe: Recipe, models: Models) -> list[Outcome]:
    """Outcomes of those `claims`, of one run with `recipe`, that rules or recorded answers can tell.

    A vote's answer is the first that was recorded to its question; where only one that was not held to the declared
    answers is recorded, that one. A teacher's claim is looked at where its turn's hint is among the outcomes; its
    answer is the first that any run recorded.
    """
    mine = [claim for claim in claims if claim.signal in models.signals]
    answered = load_answered(connection, (claim.turn_id for claim in mine))
    outcomes, asked = [], []
    for claim in mine:
        if claim.signal == "teacher":
            continue
        if (told := by_rules(claim, answered[claim.turn_id], recipe)) is not None:
            outcomes.append(told)
        else:
            asked.append(claim)
    if asked and models.judge is not None:
        turns = load_turns(connection, {claim.turn_id for claim in asked})
        questions = [_question(claim, answered, turns, recipe, models) for claim in asked]
        outcomes += _by_judge(connection, questions, recipe, models.judge)
    if models.teacher is not None:
        scored = {claim.turn_id: claim for claim in mine if claim.signal == "teacher"}
        outcomes += _by_teacher(connection, scored, outcomes, recipe, models.teacher)
    return outcomes


@dataclass(frozen=True)
class _Question:
    """What a judge would be asked about a claim."""

    claim: Claim
    answered: Answered
    turn: Turn
    purpose: Purpose
    spec: JudgeSpec | HintSpec
    prompt: Prompt

    def digests(self, model: str, *, constrained: bool) -> list[str]:
        """One a vote."""
        held = [self.prompt.constrained, constraint_of(self.purpose)]
        return question_digests(
            purpose=self.purpose,
            model=model,
            prompt_digest=self.prompt.digest,
            rendered=held if constrained else [self.prompt.free, None],
            samplings=samplings(self.spec),
        )


def _question(
    claim: Claim, answered: Mapping[str, Answered], turns: Mapping[str, Turn], recipe: Recipe, models: Models
) -> _Question:
    purpose: Purpose = "reward" if claim.signal == "reward" else "hint"
    spec = recipe.judge if purpose == "reward" else recipe.hint
    assert spec is not None
    shown = answered[claim.turn_id]
    prompt = prompt_for(purpose, turns[claim.turn_id], shown.next_states, characters=models.characters)
    return _Question(claim, shown, turns[claim.turn_id], purpose, spec, prompt)


def _by_judge(connection: Connection, questions: Sequence[_Question], recipe: Recipe, model: str) -> list[Outcome]:
    constrained = [one.digests(model, constrained=True) for one in questions]
    found = recorded_answers(connection, [digest for votes in constrained for digest in votes])
    free = [
        [] if all(digest in found for digest in votes) else one.digests(model, constrained=False)
        for one, votes in zip(questions, constrained, strict=True)
    ]
    if any(free):
        found |= recorded_answers(connection, [digest for votes in free for digest in votes])
    outcomes = []
    for one, votes, others in zip(questions, constrained, free, strict=True):
        kept = [found.get(digest) or found.get(other) for digest, other in zip(votes, others or votes, strict=True)]
        answers: list[Answer] = [read_answer(*answer) for answer in kept if answer is not None]
        if len(answers) == len(votes):
            told = by_answers(one.claim, one.answered, recipe, one.turn, one.prompt.digest, model, answers)
            if not asks_teacher(recipe, told):  # which of several hints is best is the teacher's to say
                outcomes.append(told)
    return outcomes


def _by_teacher(
    connection: Connection, claims: Mapping[str, Claim], outcomes: Sequence[Outcome], recipe: Recipe, model: str
) -> list[Outcome]:
    if recipe.teacher is None or recipe.hint is None:
        return []
    sessions, questions = {}, {}
    for outcome in outcomes:
        result, turn_id = outcome.result, outcome.claim.turn_id
        if turn_id in claims and isinstance(result, HintResult) and result.text is not None:
            sessions[turn_id] = outcome.session_id
            questions[turn_id] = teacher_question(model, turn_id, result.text, Wanted.of(recipe))
    found = recorded_scores(connection, questions)
    return [
        Outcome(claim=claims[turn_id], session_id=sessions[turn_id], result=scores) for turn_id, scores in found.items()
    ]
