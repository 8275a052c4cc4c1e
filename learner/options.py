"""A recipe's loss and optimizer as the options of a step."""

from __future__ import annotations

import msgspec

from learner.objective import StepOptions
from schemas.recipes import Recipe


def step_options(recipe: Recipe, tokens_per_forward: int) -> StepOptions:
    """The options of `recipe`, field by field; `tokens_per_forward` is the machine's, not the recipe's."""
    loss, optimizer = msgspec.structs.asdict(recipe.loss), msgspec.structs.asdict(recipe.optimizer)
    return StepOptions(**loss, **optimizer, tokens_per_forward=tokens_per_forward)
