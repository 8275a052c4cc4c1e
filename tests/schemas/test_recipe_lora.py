"""Adapters as a recipe asks for them."""

from __future__ import annotations

from typing import Any

import pytest

from learner.lora import LoraOptions
from learner.options import step_options
from schemas.recipes import InvalidRecipe, recipe_named


def test_adapters_reach_the_learner_and_change_the_digest() -> None:
    plain = recipe_named("binary-rl")
    adapted = recipe_named("binary-rl", {"lora": {"rank": 8, "targets": ["q_proj", "v_proj"]}})
    assert step_options(plain, 1024).lora is None
    assert step_options(adapted, 1024).lora == LoraOptions(rank=8, alpha=32.0, targets=("q_proj", "v_proj"))
    assert plain.digest() != adapted.digest()


@pytest.mark.parametrize(
    ("lora", "said"),
    [
        ({"rank": 0}, "rank"),
        ({"alpha": 0.0}, "alpha"),
        ({"targets": []}, "lora.targets is empty"),
        ({"targets": ["q_proj", "lm_head"]}, "lora.targets names lm_head"),
    ],
)
def test_what_cannot_work_is_refused_by_its_name(lora: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRecipe, match=said):
        recipe_named("binary-rl", {"lora": lora})
