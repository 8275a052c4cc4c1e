"""Which sessions were erased, for what reads old files: their rows do not come in again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from hindstream.endpoints import resolve_endpoints
from hindstream.errors import UserError
from hindstream.settings import Settings
from processors.erasing.contents import ERASED
from processors.erasing.late import is_tombstone
from producers.importers.base import Importer, RefusedRow, Row
from producers.importers.detect import Head
from schemas.database import in_words, make_engine
from schemas.envelope import Event

_APPLICATION = "hindstream-import"


def known_erased(engine: Engine) -> frozenset[str]:
    """Every session that was erased."""
    with engine.connect() as connection:
        return frozenset(
            connection.exec_driver_sql(
                "SELECT session_id FROM sessions WHERE close_reason = %(erased)s", {"erased": ERASED}
            ).scalars()
        )


def erased_as_told(settings: Settings) -> frozenset[str]:
    """The same for a command that needs no database: where none answers, workers will leave those sessions out, and a
    line on stderr says so."""
    try:
        engine = make_engine(resolve_endpoints(settings).database_url, pool_size=1, application_name=_APPLICATION)
    except UserError:
        return frozenset()  # there is no database, so nothing was erased from it
    try:
        return known_erased(engine)
    except DBAPIError as err:
        print(
            f"hindstream: the database does not say which sessions were erased ({in_words(err)}); rows of such go onto "
            "the log, and workers leave them out",
            file=sys.stderr,
        )
        return frozenset()
    finally:
        engine.dispose()


class WithoutErased:
    """An importer whose rows of erased sessions are refused. Events that say that a session is erased come through.

    Args:
        importer: reads the file.
        erased: sessions.
    """

    def __init__(self, importer: Importer, erased: frozenset[str]) -> None:
        self._importer, self._erased = importer, erased
        self.NAME, self.SOURCE = importer.NAME, importer.SOURCE

    def sniff(self, head: Head) -> bool:
        """See `Importer.sniff`."""
        return self._importer.sniff(head)

    def read(self, path: Path) -> Iterator[Row]:
        """See `Importer.read`."""
        for row in self._importer.read(path):
            if isinstance(row, Event) and row.data.session_id in self._erased and not is_tombstone(row):
                origin = getattr(row.data, "origin", None)
                line = 1 if origin is None else origin.line
                yield RefusedRow(path.name, line, f"session {row.data.session_id!r} was erased on request", "")
            else:
                yield row
