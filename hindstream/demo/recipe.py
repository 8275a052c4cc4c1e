"""The demo's recipe: `combine`, with rules that read the simulated user's reactions."""

from __future__ import annotations

from producers.simulated_user.taste import DISLIKED_PATTERN, HINT_PATTERN, LIKED_PATTERN
from schemas.recipes import Recipe, recipe_named


def demo_recipe(*, lr: float, batch_size: int) -> Recipe:
    """`combine` at learning rate `lr`, `batch_size` turns a micro-batch.

    The loss is the mean over the micro-batch's tokens (`normaliser="batch"`), since nearly every early turn has
    both a reward and a hint. Rules judge and find hints, because SmolLM2-135M is too small to judge.
    """
    return recipe_named(
        "combine",
        {
            "name": "demo",
            "description": "combine, with rules for the simulated user's reactions instead of an LLM judge.",
            "judge": {
                "rules": [
                    {"pattern": LIKED_PATTERN, "score": 1},
                    {"pattern": DISLIKED_PATTERN, "score": -1},
                ],
                "votes": 0,
            },
            "hint": {"patterns": [HINT_PATTERN], "votes": 0},
            "batch": {"size": batch_size, "max_staleness": 4},
            "loss": {"normaliser": "batch"},
            "optimizer": {"lr": lr, "betas": [0.9, 0.95]},
        },
    )
