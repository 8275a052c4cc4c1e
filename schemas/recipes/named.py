"""The recipes that can be named: one TOML file each in `schemas/recipes/presets/`. A new file is a new preset."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from schemas.recipes.checks import InvalidRecipe
from schemas.recipes.plain import overlaid, recipe_from_dict
from schemas.recipes.specs import Recipe

DIRECTORY = Path(__file__).with_name("presets")


def _read(path: Path) -> Recipe:
    recipe = recipe_from_dict(tomllib.loads(path.read_text(encoding="utf-8")))
    if recipe.name != path.stem:
        raise InvalidRecipe(f"{path}: its name is {recipe.name!r}, not that of its file")
    return recipe


PRESETS: dict[str, Recipe] = {path.stem: _read(path) for path in sorted(DIRECTORY.glob("*.toml"))}
"""By name; what a file leaves out is at its default."""


def recipe_named(name: str, overrides: dict[str, Any] | None = None) -> Recipe:
    """A preset with `overrides` applied, a nested dict such as {"optimizer": {"lr": 1e-5}}.

    Raises:
        InvalidRecipe: unknown name or field, or a combination that cannot work.
    """
    if name not in PRESETS:
        raise InvalidRecipe(f"no recipe {name!r}; there are: {', '.join(PRESETS)}")
    return recipe_from_dict(overlaid(msgspec.to_builtins(PRESETS[name]), overrides or {}))
