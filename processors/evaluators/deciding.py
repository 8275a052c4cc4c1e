"""From a claim to its outcome: rules where they can tell, a model where they cannot, a failure where neither."""

from __future__ import annotations

from processors.evaluators.completion import Outcome
from processors.evaluators.hint import (
    HintOpinion,
    HintResult,
    failed_hint,
    hint_by_answers,
    hint_by_model,
    hint_by_rules,
)
from processors.evaluators.inputs import Answered, Turn
from processors.evaluators.judge import (
    Opinion,
    RewardResult,
    failed_reward,
    reward_by_answers,
    reward_by_model,
    reward_by_rules,
)
from processors.evaluators.llm_judge import Answer, Panel
from processors.evaluators.queue import Claim
from schemas.recipes import InvalidRecipe, Recipe


def asks_a_model(recipe: Recipe) -> bool:
    """Whether the recipe may need a judge server."""
    hint = recipe.hint if recipe.hint and recipe.hint.context is None else None
    return bool((recipe.judge and recipe.judge.votes) or (hint and hint.votes))


def by_rules(claim: Claim, answered: Answered, recipe: Recipe) -> Outcome | None:
    """The outcome without a model server; None where one must be asked, as a teacher always must."""
    opinion: Opinion | HintOpinion | None
    try:
        if claim.signal == "reward" and recipe.judge is not None:
            opinion = reward_by_rules(recipe.judge, answered)
        elif claim.signal == "hint" and recipe.hint is not None:
            opinion = hint_by_rules(recipe.hint, answered)
        elif claim.signal == "teacher" and recipe.teacher is not None:
            opinion = None
        else:
            return failed(claim, answered.session_id, f"recipe {recipe.name!r} asks for no {claim.signal}")
    except InvalidRecipe as err:
        return failed(claim, answered.session_id, str(err))
    return None if opinion is None else _outcome(claim, answered, opinion)


async def by_model(
    claim: Claim, answered: Answered, recipe: Recipe, turn: Turn, panel: Panel, *, characters: int
) -> tuple[Outcome, str | None]:
    """The outcome of a reward or hint that `by_rules` could not tell, and why another try might better it (None: it
    is final)."""
    opinion: Opinion | HintOpinion
    if claim.signal == "reward":
        assert recipe.judge is not None
        opinion = await reward_by_model(recipe.judge, answered, turn, panel, characters=characters)
    else:
        assert recipe.hint is not None
        opinion = await hint_by_model(recipe.hint, answered, turn, panel, characters=characters)
    return _outcome(claim, answered, opinion), opinion.retry_reason


def by_answers(
    claim: Claim,
    answered: Answered,
    recipe: Recipe,
    turn: Turn,
    prompt_digest: str,
    model: str,
    answers: list[Answer],
) -> Outcome:
    """What `by_model` gives where `model` has answered already."""
    opinion: Opinion | HintOpinion
    if claim.signal == "reward":
        assert recipe.judge is not None
        opinion = reward_by_answers(recipe.judge, answered, prompt_digest, model, answers)
    else:
        assert recipe.hint is not None
        opinion = hint_by_answers(recipe.hint, answered, turn, prompt_digest, model, answers)
    return _outcome(claim, answered, opinion)


def failed(claim: Claim, session_id: str, reason: str) -> Outcome:
    """The outcome of an evaluation that cannot be done."""
    result: RewardResult | HintResult | None = None
    if claim.signal == "reward":
        result = failed_reward(reason)
    elif claim.signal == "hint":
        result = failed_hint(reason)
    return Outcome(claim=claim, session_id=session_id, result=result, reason=reason)


def _outcome(claim: Claim, answered: Answered, opinion: Opinion | HintOpinion) -> Outcome:
    result = opinion.result
    words = result.explanation if isinstance(result, RewardResult) else result.reason
    return Outcome(
        claim=claim,
        session_id=answered.session_id,
        result=result,
        votes=opinion.votes,
        reason=words if result.status == "failed" else None,
    )
