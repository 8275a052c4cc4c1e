"""The recipe that the settings name: a preset, or a file that holds a whole recipe."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from hindstream.errors import UserError
from schemas.recipes import PRESETS, InvalidRecipe, Recipe, recipe_from_dict, recipe_named


def load_recipe(name_or_path: str) -> Recipe:
    """A preset by name, or the recipe in a `.toml` or `.json` file.

    Raises:
        UserError: no such preset or file, or a recipe that cannot work; it names the field.
    """
    path = Path(name_or_path)
    try:
        if path.suffix == ".toml":
            return recipe_from_dict(tomllib.loads(path.read_text()))
        if path.suffix == ".json":
            return recipe_from_dict(json.loads(path.read_text()))
        return recipe_named(name_or_path)
    except FileNotFoundError:
        raise UserError(f"run.recipe: there is no file {path}; presets are {', '.join(PRESETS)}") from None
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as err:
        raise UserError(f"run.recipe: {path} cannot be read: {err}") from None
    except InvalidRecipe as err:
        raise UserError(f"run.recipe: {err}") from None
