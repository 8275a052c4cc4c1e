"""The recipe that the settings name: a preset, or a file that holds a whole recipe."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hindstream.errors import UserError
from hindstream.settings import Settings
from schemas.recipes import PRESETS, InvalidRecipe, Recipe, recipe_from_dict, recipe_named
from schemas.recipes.changes import parse_overrides
from schemas.recipes.plain import overlaid


def load_recipe(name_or_path: str, assignments: Sequence[str] = ()) -> Recipe:
    """A preset by name, or the recipe in a `.toml` or `.json` file, with `assignments` (`loss.clip_high=0.3`) over it.

    Raises:
        UserError: no such preset or file, or a recipe that cannot work; it names the field.
    """
    try:
        recipe = _named(name_or_path)
        if not assignments:
            return recipe
        return recipe_from_dict(overlaid(msgspec.to_builtins(recipe), parse_overrides(assignments)))
    except InvalidRecipe as err:
        where = f"{name_or_path}: " if Path(name_or_path).suffix in (".toml", ".json") else ""
        raise UserError(f"{where}{err}") from None


def run_recipe(settings: Settings) -> Recipe:
    """The recipe of the run that the settings name, with its overrides.

    Raises:
        UserError: as `load_recipe`.
    """
    return load_recipe(settings.run.recipe, settings.run.overrides)


def _named(name_or_path: str) -> Recipe:
    path = Path(name_or_path)
    try:
        if path.suffix == ".toml":
            return recipe_from_dict(tomllib.loads(path.read_text()))
        if path.suffix == ".json":
            return recipe_from_dict(json.loads(path.read_text()))
        return recipe_named(name_or_path)
    except FileNotFoundError:
        raise UserError(f"there is no recipe file {path}; presets are {', '.join(PRESETS)}") from None
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as err:
        raise UserError(f"{path} cannot be read: {err}") from None
