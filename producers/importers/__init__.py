"""Importers: what reads logs that others wrote, one file a format, found by entry point."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import entry_points

from producers.importers.base import Importer, RefusedRow, Row

log = logging.getLogger(__name__)

GROUP = "hindstream.importers"
"""The entry point group: name of the format -> the module that reads it, of this package or of any other."""


class _Importers(Mapping[str, Importer]):
    """Loaded when first asked for, since every command line imports this package."""

    @cached_property
    def _loaded(self) -> dict[str, Importer]:
        found: dict[str, Importer] = {}
        for entry in sorted(entry_points(group=GROUP), key=lambda one: one.name):
            try:
                found[entry.name] = entry.load()
            except Exception as err:  # whatever a strange package does must not take the other formats away
                whose = entry.dist.name if entry.dist else "?"
                log.warning("the importer %s of package %s cannot be loaded: %s", entry.name, whose, err)
        return found

    def __getitem__(self, name: str) -> Importer:
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)


IMPORTERS: Mapping[str, Importer] = _Importers()
"""Every format that can be imported, by the name that the user types, in the order of the names."""

__all__ = ["GROUP", "IMPORTERS", "Importer", "RefusedRow", "Row"]
