"""What a recipe needs of the data beside tokens, reward and the teacher's log-probs."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.recipes.advantages import ADVANTAGES
from schemas.recipes.specs import Recipe


@dataclass(frozen=True, kw_only=True)
class Needs:
    """`zero_counts`: a reward of 0 can carry a gradient. `groups`: micro-batches hold whole groups. `session`: rewards
    of the session's earlier turns. `hinted_prompt`: the prompt with the hint in it, for a teacher in the learner.
    `reference`: the base model's log-probs. `liked_only`: only a reward above 0 is a signal. `unrewarded`: an answer is
    one, whatever its reward. `pairs`: micro-batches hold pairs of answers. `text`: a turn needs no token ids.
    `prompt_scores`: the teacher reads no hint. `unanswered`: a turn that nothing answered may say something too.
    `student_scores`: the teacher's scores at the policy's own likeliest tokens."""

    zero_counts: bool
    groups: bool
    session: bool
    hinted_prompt: bool
    reference: bool
    liked_only: bool = False
    unrewarded: bool = False
    pairs: bool = False
    text: bool = False
    prompt_scores: bool = False
    unanswered: bool = False
    student_scores: bool = False


def needs_of(recipe: Recipe) -> Needs:
    """The needs of a checked recipe; a component that is left out needs nothing."""
    advantage = ADVANTAGES[recipe.advantage.kind]
    rl, opd = recipe.loss.w_rl != 0, recipe.loss.w_opd != 0
    return Needs(
        zero_counts=rl and advantage.zero_counts,
        groups=rl and advantage.whole_groups,
        session=rl and advantage.session_rewards,
        reference=recipe.loss.kl_coefficient != 0
        or (opd and recipe.distillation.kind == "extrapolated")
        or (rl and advantage.pairs),
        hinted_prompt=opd and recipe.teacher is not None and recipe.teacher.weights != "server",
        liked_only=rl and advantage.liked_only,
        unrewarded=rl and advantage.unrewarded,
        pairs=rl and advantage.pairs,
        text=recipe.batch.tokens == "text",
        prompt_scores=opd and recipe.hint is None,
        unanswered=(rl and (advantage.unrewarded or advantage.pairs)) or (opd and recipe.hint is None),
        student_scores=opd
        and recipe.teacher is not None
        and recipe.teacher.student_ids
        and recipe.distillation.entries == "student",
    )
