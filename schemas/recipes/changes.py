"""Overrides as text (`loss.clip_high=0.3`), and where two recipes differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from schemas.recipes.checks import InvalidRecipe
from schemas.recipes.plain import overlaid
from schemas.recipes.specs import Recipe


@dataclass(frozen=True)
class Difference:
    """One field by its path with dots; None where a recipe has no such field, because its table is absent."""

    field: str
    one: Any
    other: Any


def parse_overrides(assignments: Iterable[str]) -> dict[str, Any]:
    """Overrides from `path.to.field=value` texts, for `recipe_named`.

    A value is JSON (`0.3`, `true`, `null`, `[0.9, 0.99]`, `"text"`); what is none is taken as text.

    Raises:
        InvalidRecipe: there is no `=` or no field before it.
    """
    overrides: dict[str, Any] = {}
    for assignment in assignments:
        path, equals, value = assignment.partition("=")
        names = path.strip().split(".")
        if not equals or not all(names):
            raise InvalidRecipe(f"{assignment!r} sets no field; write it as loss.clip_high=0.3")
        nested: Any = _value(value.strip())
        for name in reversed(names):
            nested = {name: nested}
        overrides = overlaid(overrides, nested)
    return overrides


def differences(one: Recipe, other: Recipe) -> list[Difference]:
    """Every field that differs but name and description, in the order of the recipe."""
    left, right = (dict(_leaves(msgspec.to_builtins(recipe), "")) for recipe in (one, other))
    names = list(dict.fromkeys([*left, *right]))
    return [
        Difference(name, left.get(name), right.get(name))
        for name in names
        if name not in ("name", "description") and left.get(name, _ABSENT) != right.get(name, _ABSENT)
    ]


def as_toml(recipe: Recipe) -> str:
    """The whole recipe as a TOML file that can be run as it stands; what is None is left out."""
    return "\n".join(_tables(msgspec.to_builtins(recipe), "")).strip() + "\n"


_ABSENT = object()


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _leaves(plain: dict[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for name, value in plain.items():
        here = f"{path}.{name}" if path else name
        if isinstance(value, dict):
            yield from _leaves(value, here)
        else:
            yield here, value


def _tables(plain: dict[str, Any], path: str) -> Iterator[str]:
    """Lines of a table: its values, then the tables below it."""
    below = {name: value for name, value in plain.items() if isinstance(value, dict)}
    for name, value in plain.items():
        if value is not None and name not in below:
            yield f"{name} = {_toml_value(value)}"
    for name, table in below.items():
        here = f"{path}.{name}" if path else name
        yield from ("", f"[{here}]", *_tables(table, here))


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml_value(one)}" for name, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml_value(one) for one in value) + "]"
    return json.dumps(value, ensure_ascii=False)  # JSON's scalars are TOML's
