"""Recipes as data: their fields, the presets, overrides, and what they need."""

from schemas.recipes.checks import InvalidRecipe
from schemas.recipes.learning import (
    AdvantageSpec,
    BatchSpec,
    CriticSpec,
    DistillationSpec,
    LoraSpec,
    LossSpec,
    MismatchSpec,
    OptimizerSpec,
)
from schemas.recipes.named import PRESETS, recipe_named
from schemas.recipes.needs import Needs, needs_of
from schemas.recipes.plain import recipe_from_dict
from schemas.recipes.signals import HintSpec, JudgeSpec, TeacherSpec, TextRule
from schemas.recipes.specs import Recipe

__all__ = [
    "PRESETS",
    "AdvantageSpec",
    "BatchSpec",
    "CriticSpec",
    "DistillationSpec",
    "HintSpec",
    "InvalidRecipe",
    "JudgeSpec",
    "LoraSpec",
    "LossSpec",
    "MismatchSpec",
    "Needs",
    "OptimizerSpec",
    "Recipe",
    "TeacherSpec",
    "TextRule",
    "needs_of",
    "recipe_from_dict",
    "recipe_named",
]
