"""The configured database, as commands use it: for as long as they need it, and its refusals in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError

from hindstream.endpoints import resolve_endpoints
from hindstream.errors import UserError
from hindstream.settings import load_settings
from schemas.database import in_words


@contextmanager
def database(advice: str = "look at `hindstream status`", **options: Any) -> Iterator[Engine]:
    """An engine that is disposed of afterwards; `options` are those of `create_engine`.

    Raises:
        UserError: there is none, or it refuses something; `advice` says what to do about that.
    """
    engine = create_engine(resolve_endpoints(load_settings()).database_url, **options)
    try:
        yield engine
    except DBAPIError as err:
        raise UserError(f"the database refuses: {in_words(err)}; {advice}") from None
    finally:
        engine.dispose()
