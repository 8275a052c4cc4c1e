"""How far two judges agree on the same turns, beyond what chance alone would give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Confusion = Mapping[tuple[float | None, float | None], int]
"""Turns by (reward of the first run, reward of the second); None is no reward."""


@dataclass(frozen=True)
class Agreement:
    """`both`: turns that have a reward in both runs; only these are compared. `share`: of them with the same reward.
    `kappa`: None where it says nothing, because no turn is compared or both runs gave one and the same reward."""

    both: int
    share: float | None
    kappa: float | None
    only_a: int
    only_b: int


def agreement(confusion: Confusion) -> Agreement:
    """Agreement and Cohen's kappa (1960): (observed - expected) / (1 - expected) over the turns scored by both.

    A turn without a reward in one run is in no cell: a failure is no opinion.
    """
    scored = {pair: turns for pair, turns in confusion.items() if pair[0] is not None and pair[1] is not None}
    both = sum(scored.values())
    only_a = sum(turns for (a, b), turns in confusion.items() if a is not None and b is None)
    only_b = sum(turns for (a, b), turns in confusion.items() if a is None and b is not None)
    if not both:
        return Agreement(0, None, None, only_a, only_b)
    observed = sum(turns for (a, b), turns in scored.items() if a == b) / both
    values = {value for pair in scored for value in pair}
    expected = sum(
        sum(turns for (a, _), turns in scored.items() if a == value)
        * sum(turns for (_, b), turns in scored.items() if b == value)
        for value in values
    ) / (both * both)
    kappa = None if expected == 1.0 else (observed - expected) / (1.0 - expected)
    return Agreement(both, observed, kappa, only_a, only_b)
