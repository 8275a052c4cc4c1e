"""The evaluative signal of a turn: people outrank code, code outranks a model's votes, or they are combined as the
recipe says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from processors.evaluators.code_judge import votes_of_code, votes_of_people
from processors.evaluators.combining import KINDS, Kind, combine
from processors.evaluators.inputs import Answered, Turn
from processors.evaluators.llm_judge import Answer, Panel, passing_fault, verdict_vote
from processors.evaluators.prompts import prompt_for
from processors.evaluators.votes import Tally, Vote, tally
from schemas.recipes import JudgeSpec


@dataclass(frozen=True, kw_only=True)
class RewardResult:
    """A row of `rewards`. `value` is None where `abstained` or `failed`."""

    status: Literal["scored", "tie", "abstained", "failed"]
    value: float | None
    annotator_kind: Literal["LLM", "CODE", "HUMAN"] | None
    votes_valid: int
    votes_total: int
    explanation: str


@dataclass(frozen=True, kw_only=True)
class Opinion:
    """A result with its votes. `retry_reason`: it is only what there is now; another try may bring missing votes."""

    result: RewardResult
    votes: tuple[Vote, ...]
    retry_reason: str | None = None


def reward_by_rules(spec: JudgeSpec, answered: Answered) -> Opinion | None:
    """The reward without a model; None where a model must be asked.

    Raises:
        InvalidRecipe: a rule's pattern is no regular expression, or a rule in Python is not installed.
    """
    votes = _votes_without_model(spec, answered)
    said = _said(votes)
    asks = bool(spec.votes and answered.next_states)
    if asks and (spec.combine != "first" or not said):
        return None
    if said:
        return Opinion(result=_combined(spec, votes, said), votes=tuple(votes))
    explanation = "no feedback, verdict, exit code or rule applies, and the recipe asks no model"
    if not answered.next_states:
        explanation = "nothing answered the turn, so nobody can say whether it was liked"
    result = RewardResult(
        status="abstained",
        value=None,
        annotator_kind="CODE",
        votes_valid=0,
        votes_total=len(votes),
        explanation=explanation,
    )
    return Opinion(result=result, votes=tuple(votes))


async def reward_by_model(spec: JudgeSpec, answered: Answered, turn: Turn, panel: Panel, *, characters: int) -> Opinion:
    """The majority of `spec.votes` votes of a model; see `reward_by_answers`."""
    prompt = prompt_for("reward", turn, answered.next_states, characters=characters)
    answers = await panel.ask("reward", prompt, spec)
    return reward_by_answers(spec, answered, prompt.digest, panel.server.model, answers)


def reward_by_answers(
    spec: JudgeSpec, answered: Answered, prompt_digest: str, model: str, answers: list[Answer]
) -> Opinion:
    """The majority of the votes that `model` gave as `answers`, combined with what people and code say where
    `spec.combine` asks for it.

    With fewer than `spec.quorum` valid ones the model says nothing; then the reward is `abstained`, or `failed` where
    no vote was answered at all, unless others can tell. `retry_reason` is set where another try may bring the missing
    votes.
    """
    votes = [verdict_vote(answer, model, prompt_digest) for answer in answers]
    before = _votes_without_model(spec, answered)
    said = {} if spec.combine == "first" else _said(before)  # or else they hold only invalid ones, which are kept
    counted = tally(_scores(votes), quorum=spec.quorum)
    if said:
        if counted.value is not None:
            said["LLM"] = counted
        result = _combined(spec, [*before, *votes], said)
    elif all(vote.status == "error" for vote in votes):
        result = failed_reward(votes[0].explanation or "no answer", total=len(votes))
    else:
        result = _counted(counted, votes, "LLM")
    retry_reason = passing_fault(answers) if counted.status == "abstained" else None
    return Opinion(result=result, votes=(*before, *votes), retry_reason=retry_reason)


def failed_reward(reason: str, *, total: int = 0) -> RewardResult:
    """No reward, because of a fault."""
    return RewardResult(
        status="failed", value=None, annotator_kind=None, votes_valid=0, votes_total=total, explanation=reason
    )


def _votes_without_model(spec: JudgeSpec, answered: Answered) -> list[Vote]:
    """People's votes, then code's. Code is not asked where people's decide alone."""
    people = votes_of_people(answered.feedback)
    if not spec.code or (people and spec.combine == "first"):
        return people
    return [*people, *votes_of_code(answered, spec.rules, spec.functions)]


def _said(votes: list[Vote]) -> dict[Kind, Tally]:
    """What people and code say, as far as they can tell."""
    said: dict[Kind, Tally] = {}
    for kind in KINDS:
        counted = tally(_scores([vote for vote in votes if vote.annotator_kind == kind]), quorum=1)
        if counted.value is not None:
            said[kind] = counted
    return said


def _combined(spec: JudgeSpec, votes: list[Vote], said: dict[Kind, Tally]) -> RewardResult:
    """Of one kind alone its own count; of several what the recipe's rule makes of them."""
    if len(said) == 1:
        ((kind, counted),) = said.items()
        return _counted(counted, [vote for vote in votes if vote.annotator_kind == kind], kind)
    one = combine(spec.combine, {kind: counted.value for kind, counted in said.items() if counted.value is not None})
    return RewardResult(
        status=one.status,
        value=one.value,
        annotator_kind=one.kind,
        votes_valid=sum(vote.status == "valid" for vote in votes),
        votes_total=len(votes),
        explanation=f"{one.words}; {_words(votes)}",
    )


def _scores(votes: list[Vote]) -> list[int | None]:
    return [vote.score if vote.status == "valid" else None for vote in votes]


def _counted(counted: Tally, votes: list[Vote], kind: Literal["LLM", "CODE", "HUMAN"]) -> RewardResult:
    return RewardResult(
        status=counted.status,
        value=counted.value,
        annotator_kind=kind,
        votes_valid=counted.valid,
        votes_total=counted.total,
        explanation=_words(votes),
    )


def _words(votes: list[Vote]) -> str:
    return "; ".join(f"{vote.annotator}: {vote.explanation or vote.status}" for vote in votes)
