"""Importers: what reads logs that others wrote, one file a format."""

from __future__ import annotations

from producers.importers import swe_agent, tau_bench
from producers.importers.base import Importer, RefusedRow, Row

IMPORTERS: dict[str, Importer] = {importer.NAME: importer for importer in (tau_bench, swe_agent)}
"""Every format that can be imported, by the name that the user types."""

__all__ = ["IMPORTERS", "Importer", "RefusedRow", "Row"]
