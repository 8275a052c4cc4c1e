"""The directive signal of a turn: what its next state says it should have been like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from processors.evaluators.code_judge import compiled
from processors.evaluators.inputs import Answered, Turn, replies
from processors.evaluators.llm_judge import Answer, Panel, hint_vote, passing_fault
from processors.evaluators.prompts import prompt_for
from processors.evaluators.refusing import Refuse, refusing
from processors.evaluators.votes import Vote
from schemas.recipes import HintSpec


@dataclass(frozen=True, kw_only=True)
class HintResult:
    """A row of `hints`. `text` is the chosen hint where `accepted`; `reason` says why there is none."""

    status: Literal["accepted", "none", "failed"]
    text: str | None
    annotator_kind: Literal["LLM", "CODE"] | None
    votes_valid: int
    votes_total: int
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class HintOpinion:
    """A result with its votes. `retry_reason`: it is only what there is now; another try may bring a hint."""

    result: HintResult
    votes: tuple[Vote, ...]
    retry_reason: str | None = None


def hint_by_rules(spec: HintSpec, answered: Answered) -> HintOpinion | None:
    """The recipe's context, if it has one: nobody votes on it. Else the first hint that a pattern finds in the user's
    replies and that is long enough; None where a model must be asked. Replies in their order, on each the patterns in
    the recipe's.

    Raises:
        InvalidRecipe: a pattern is no regular expression.
    """
    if spec.context is not None:
        return HintOpinion(result=_chosen(spec.context, "CODE", ()), votes=())
    votes = _matches(spec, replies(answered.next_states), refusing(spec, answered, None))
    if votes and votes[-1].score == 1:
        return HintOpinion(result=_chosen(votes[-1].explanation, "CODE", votes), votes=tuple(votes))
    if spec.votes:
        return None
    reason = "; ".join(vote.explanation or "" for vote in votes) or "no pattern is found in the user's replies"
    return HintOpinion(result=_chosen(None, "CODE", votes, reason), votes=tuple(votes))


async def hint_by_model(
    spec: HintSpec, answered: Answered, turn: Turn, panel: Panel, *, characters: int
) -> HintOpinion:
    """The longest accepted hint of `spec.votes` votes; see `hint_by_answers`."""
    prompt = prompt_for("hint", turn, answered.next_states, characters=characters)
    answers = await panel.ask("hint", prompt, spec)
    return hint_by_answers(spec, answered, turn, prompt.digest, panel.server.model, answers)


def hint_by_answers(
    spec: HintSpec, answered: Answered, turn: Turn, prompt_digest: str, model: str, answers: list[Answer]
) -> HintOpinion:
    """The longest accepted hint of those that `model` gave as `answers`; of equally long ones the earliest vote's.
    Where the recipe asks the teacher which is best, `choosing` then chooses anew.

    Without an accepted one the result is `none` where a valid vote said so, else `failed`; `retry_reason` is set
    where a vote has no answer yet.
    """
    refuse = refusing(spec, answered, turn.response)
    votes = [hint_vote(answer, model, prompt_digest, spec.min_characters, refuse) for answer in answers]
    before = _matches(spec, replies(answered.next_states), refusing(spec, answered, None))  # refused ones are kept
    accepted = [vote.explanation or "" for vote in votes if vote.score == 1]
    reasons = "; ".join(vote.explanation or vote.status for vote in votes)
    if accepted:
        result = _chosen(max(accepted, key=len), "LLM", votes)
    elif any(vote.status == "valid" for vote in votes):
        result = _chosen(None, "LLM", votes, reasons)
    else:
        result = failed_hint(f"no valid vote: {reasons}", total=len(votes))
    retry_reason = None if accepted else passing_fault(answers)
    return HintOpinion(result=result, votes=(*before, *votes), retry_reason=retry_reason)


def failed_hint(reason: str, *, total: int = 0) -> HintResult:
    """No hint, because of a fault."""
    return HintResult(status="failed", text=None, annotator_kind=None, votes_valid=0, votes_total=total, reason=reason)


def _matches(spec: HintSpec, texts: Sequence[str], refuse: Refuse) -> list[Vote]:
    """A vote for each pattern that is found, up to the first whose hint is accepted."""
    votes = []
    for text in texts:
        for number, pattern in enumerate(spec.patterns):
            match = compiled(pattern).search(text)
            if match is None:
                continue
            hint = ((match.group(1) if match.re.groups else None) or match.group(0)).strip()
            why = refuse(hint)
            if len(hint) < spec.min_characters:
                why = f"too short: {hint!r}, at least {spec.min_characters} characters"
            votes.append(
                Vote(
                    status="valid",
                    annotator_kind="CODE",
                    annotator=f"pattern {number}",
                    score=int(why is None),
                    explanation=hint if why is None else why,
                )
            )
            if why is None:
                return votes
    return votes


def _chosen(
    text: str | None, kind: Literal["LLM", "CODE"], votes: Sequence[Vote], reason: str | None = None
) -> HintResult:
    return HintResult(
        status="none" if text is None else "accepted",
        text=text,
        annotator_kind=kind,
        votes_valid=sum(vote.status == "valid" for vote in votes),
        votes_total=len(votes),
        reason=reason,
    )
