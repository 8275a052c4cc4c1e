"""Which two answers are compared: the pairs of a data set and those that a run trains are found alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def best_with_worst(answers: Iterable[T], score: Callable[[T], float], name: Callable[[T], str]) -> list[tuple[T, T]]:
    """Pairs (better, worse) of answers to one prompt: the best with the worst, the second best with the second worst,
    and so on while they differ. Each is in one pair at most, so none weighs more than another. `name` orders those of
    one score.

    Of the answers that are in pairs alone it finds the same pairs again.
    """
    ranked = sorted(answers, key=lambda answer: (-score(answer), name(answer)))
    half = ranked[: len(ranked) // 2]
    pairs = zip(half, reversed(ranked), strict=False)
    return [(better, worse) for better, worse in pairs if score(better) > score(worse)]
