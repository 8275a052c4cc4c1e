"""What every rule of ours does: read each next state of its kinds alone, and let the worst count."""

from __future__ import annotations

from collections.abc import Callable

from processors.evaluators.inputs import Answered
from processors.evaluators.rules import Finding
from schemas.events import NextStateKind

Reader = Callable[[str], Finding | None]


def worst(answered: Answered, kinds: tuple[NextStateKind, ...], read: Reader) -> Finding | None:
    """Of the findings in the texts of these kinds the one with the lowest score, the earliest of equal ones."""
    texts = [state.content for state in answered.next_states if state.kind in kinds and state.content]
    found = [one for text in texts if (one := read(text)) is not None]
    return min(found, key=lambda one: one.score, default=None)
