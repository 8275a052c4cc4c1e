"""Recipes from plain data, with errors that name the field and what would be right."""

from __future__ import annotations

import difflib
import re
import types
import typing
from typing import Any

import msgspec

from schemas.recipes.base import Spec, fields_of
from schemas.recipes.checks import InvalidRecipe, check
from schemas.recipes.specs import Recipe


def recipe_from_dict(plain: dict[str, Any]) -> Recipe:
    """A recipe from its JSON form, checked.

    Raises:
        InvalidRecipe: it does not fit, or cannot work.
    """
    if not isinstance(plain, dict):
        raise InvalidRecipe(f"a recipe is a table of fields, not {type(plain).__name__}")
    name = plain.get("name")
    unknown = _unknown(plain, Recipe, "")
    if unknown:
        raise InvalidRecipe(f"recipe {name!r}: {'; '.join(unknown)}")
    try:
        recipe = msgspec.convert(plain, Recipe)
    except msgspec.ValidationError as err:
        raise InvalidRecipe(f"recipe {name!r}: {_said_well(str(err), plain)}") from err
    check(recipe)
    return recipe


def overlaid(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`base` with the fields of `over` put in, table by table; lists and values are replaced whole."""
    out = dict(base)
    for name, value in over.items():
        old = base.get(name)
        out[name] = overlaid(old, value) if isinstance(value, dict) and isinstance(old, dict) else value
    return out


def _unknown(plain: dict[str, Any], spec: type[Spec], path: str) -> list[str]:
    """What `plain` names that `spec` has not, at every level."""
    fields = fields_of(spec)
    found = []
    for name, value in plain.items():
        if name not in fields:
            near = difflib.get_close_matches(str(name), fields, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            found.append(
                f"no recipe field {name!r}{f' in {path}' if path else ''}{hint} (there are: {', '.join(fields)})"
            )
            continue
        below = _spec_in(fields[name].type)
        if below is None:
            continue
        here = f"{path}.{name}" if path else name
        for place, part in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(part, dict):
                found += _unknown(part, below, f"{here}[{place}]" if isinstance(value, list) else here)
    return found


def _spec_in(annotation: Any) -> type[Spec] | None:
    """The branch that a field holds, in a list or beside None too."""
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return annotation
    if typing.get_origin(annotation) in (list, tuple, types.UnionType, typing.Union, typing.Annotated):
        for part in typing.get_args(annotation):
            below = _spec_in(part)
            if below is not None:
                return below
    return None


_BOUNDS = {">=": "at least", ">": "above", "<=": "at most", "<": "below"}


def _said_well(message: str, plain: Any) -> str:
    """msgspec's words ("Expected `int` >= 4 - at `$.teacher.top_k`") with the field first and its value."""
    match = re.fullmatch(r"(.*) - at `\$\.?(.*)`", message)
    if not match or not match[2]:
        return message
    words, path = match[1], match[2]
    bound = re.fullmatch(r"Expected `(?:int|float)` (>=|>|<=|<) (\S+)", words)
    if words.startswith("Invalid enum value"):
        choices = _choices(Recipe, re.findall(r"[^.\[\]]+", path))
        return f"{path}: {words.removeprefix('Invalid enum value ')} is none of {', '.join(map(repr, choices))}"
    if bound is None:
        return f"{path}: {words}"
    for name in re.findall(r"[^.\[\]]+", path):
        if isinstance(plain, list | tuple):
            plain = plain[int(name)] if name.isdecimal() else None
        else:
            plain = plain.get(name) if isinstance(plain, dict) else None
    return f"{path} {plain} must be {_BOUNDS[bound[1]]} {bound[2].removesuffix('.0')}"


def _choices(spec: type[Spec], names: list[str]) -> tuple[Any, ...]:
    """What the field at this path may be, where it is one of a few."""
    field = fields_of(spec).get(names[0])
    annotation: Any = field.type if field else None
    rest = [name for name in names[1:] if not name.isdecimal() and name != "..."]
    below = _spec_in(annotation)
    if rest and below is not None:
        return _choices(below, rest)
    return _literals(annotation)


def _literals(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) is typing.Literal:
        return typing.get_args(annotation)
    return next((found for part in typing.get_args(annotation) if (found := _literals(part))), ())
