"""What a request is refused with."""

from __future__ import annotations


class BadRequest(ValueError):
    """The request is refused with `status`; `field` is the one at fault, None where it is the body as a whole."""

    def __init__(self, message: str, field: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.field = field
        self.status = status
