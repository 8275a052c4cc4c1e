"""What a request is refused with, and the check of names that callers give."""

from __future__ import annotations

from typing import Any

_MAX_NAME = 256


class BadRequest(ValueError):
    """The request is refused with `status`; `field` is the one at fault, None where it is the body as a whole."""

    def __init__(self, message: str, field: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.field = field
        self.status = status


def name_of(given: Any, where: str) -> str:
    """A name that a caller gave in the field `where`.

    Raises:
        BadRequest: it is none.
    """
    if not isinstance(given, str) or not 1 <= len(given) <= _MAX_NAME or not given.isprintable():
        raise BadRequest(f"{where}: 1 to {_MAX_NAME} printable characters are needed", where)
    return given
