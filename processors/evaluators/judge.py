"""The evaluative signal of a turn: people outrank code, code outranks a model's votes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from processors.evaluators.code_judge import votes_of_code, votes_of_people
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
        InvalidRecipe: a rule's pattern is no regular expression.
    """
    people = votes_of_people(answered.feedback)
    if people:
        return Opinion(result=_counted(tally(_scores(people), quorum=1), people, "HUMAN"), votes=tuple(people))
    code = votes_of_code(answered, spec.rules) if spec.code else []
    if code and code[-1].status == "valid":
        return Opinion(result=_counted(tally(_scores(code), quorum=1), code, "CODE"), votes=tuple(code))
    if spec.votes and answered.next_states:
        return None
    explanation = "no feedback, verdict, exit code or rule applies, and the recipe asks no model"
    if not answered.next_states:
        explanation = "nothing answered the turn, so nobody can say whether it was liked"
    result = RewardResult(
        status="abstained",
        value=None,
        annotator_kind="CODE",
        votes_valid=0,
        votes_total=len(code),
        explanation=explanation,
    )
    return Opinion(result=result, votes=tuple(code))


async def reward_by_model(spec: JudgeSpec, answered: Answered, turn: Turn, panel: Panel, *, characters: int) -> Opinion:
    """The majority of `spec.votes` votes of a model; see `reward_by_answers`."""
    prompt = prompt_for("reward", turn, answered.next_states, characters=characters)
    answers = await panel.ask("reward", prompt, spec)
    return reward_by_answers(spec, answered, prompt.digest, panel.server.model, answers)


def reward_by_answers(
    spec: JudgeSpec, answered: Answered, prompt_digest: str, model: str, answers: list[Answer]
) -> Opinion:
    """The majority of the votes that `model` gave as `answers`.

    With fewer than `spec.quorum` valid ones the reward is `abstained`, or `failed` where no vote was answered at
    all; in both cases `retry_reason` is set where another try may bring the missing ones.
    """
    votes = [verdict_vote(answer, model, prompt_digest) for answer in answers]
    before = votes_of_code(answered, spec.rules) if spec.code else []  # invalid ones: they are kept, and count nothing
    counted = tally(_scores(votes), quorum=spec.quorum)
    if all(vote.status == "error" for vote in votes):
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


def _scores(votes: list[Vote]) -> list[int | None]:
    return [vote.score if vote.status == "valid" else None for vote in votes]


def _counted(counted: Tally, votes: list[Vote], kind: Literal["LLM", "CODE", "HUMAN"]) -> RewardResult:
    words = "; ".join(f"{vote.annotator}: {vote.explanation or vote.status}" for vote in votes)
    return RewardResult(
        status=counted.status,
        value=counted.value,
        annotator_kind=kind,
        votes_valid=counted.valid,
        votes_total=counted.total,
        explanation=words,
    )
