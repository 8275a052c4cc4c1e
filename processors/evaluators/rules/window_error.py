"""`window-error`: a window that did not change, or that says that something failed."""

from __future__ import annotations

import re

from processors.evaluators.inputs import Answered
from processors.evaluators.rules import Finding
from processors.evaluators.rules.reading import worst

_SAYS = re.compile(
    r"^\W*(?:no change|nothing (?:has )?changed)\W*$"
    r"|\b(?:404|500|page (?:was )?not found)\b"
    r"|\b(?:has stopped|is not) responding\b"
    r"|\bcould not be (?:sent|saved|opened|loaded|found)\b"
    r"|\bplease (?:enter|fill in|choose) (?:your|a|an|the)\b"
    r"|\byou have been signed out\b",
    re.IGNORECASE,
)


def window_error(answered: Answered) -> Finding | None:
    """Bad where the window says so. Never good: only the task says which change was wanted."""
    return worst(answered, ("gui_change",), _read)


def _read(text: str) -> Finding | None:
    match = _SAYS.search(text.strip())
    return None if match is None else Finding(-1, f"the window shows {match.group(0)!r}")
