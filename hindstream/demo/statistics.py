"""How sure is "before and after"? Intervals for a share, and an exact test for paired yes/no answers."""

from __future__ import annotations

import math
from collections.abc import Sequence

_Z95 = 1.959963984540054


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927), sensible near 0 and 1 where the normal one is not.

    Raises:
        ValueError: no trials.
    """
    if trials < 1:
        raise ValueError("a share of no trials has no interval")
    share = successes / trials
    z2 = _Z95**2
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z95 / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def mcnemar_p(before: Sequence[bool], after: Sequence[bool]) -> float:
    """Two-sided exact p of McNemar's test (1947) for pairs: how likely so lopsided a change is by chance alone."""
    gained = sum(not b and a for b, a in zip(before, after, strict=True))
    lost = sum(b and not a for b, a in zip(before, after, strict=True))
    changed = gained + lost
    if changed == 0:
        return 1.0
    tail: float = sum(math.comb(changed, k) for k in range(min(gained, lost) + 1)) / 2**changed
    return min(1.0, 2 * tail)
