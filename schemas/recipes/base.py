"""What every branch of a recipe is, and how it is hashed."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta
from msgspec.structs import FieldInfo

Count = Annotated[int, Meta(ge=0)]
AtLeastOne = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A branch of a recipe.

    `later`: fields that came after recipes of this shape were hashed. At their default they are left out of the
    digest, so that a run keeps its digest when Hindstream learns a new option.
    """

    later: ClassVar[tuple[str, ...]] = ()


@cache
def fields_of(spec: type[Spec]) -> dict[str, FieldInfo]:
    """The fields by name; msgspec works them out anew at every call, which takes a millisecond."""
    return {field.name: field for field in msgspec.structs.fields(spec)}


def hashed(spec: Spec) -> dict[str, Any]:
    """The plain form of `spec` without later fields at their default."""
    plain: dict[str, Any] = {}
    for name, field in fields_of(type(spec)).items():
        value = getattr(spec, name)
        if name in spec.later and value == field.default:
            continue
        plain[name] = hashed(value) if isinstance(value, Spec) else msgspec.to_builtins(value)
    return plain
