"""`grpo`: a reward against those of its group, the other answers to the same prompt (arXiv 2402.03300, section 4.1.1).

A_i = (r_i - mean) / (std + 1e-6); Dr. GRPO (arXiv 2503.20783) leaves the std out, since it gives easy and hard prompts
more weight than those between. The std is the unbiased one, as in all peers that were compared; they add 1e-4 to
1e-9 to it. Also the advantage of `best-of-n` (the group is the n candidates) and `k2.5` (step by step: the group is
the candidates of one turn's prompt).

What says nothing is not trained, rather than trained towards 0: no reward (it is in no mean either, so it shifts no
sibling), a group of one, a group whose rewards are all equal.

Ignores: which tokens of an answer earned the reward, and lengths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

STD_EPS = 1e-6
"""Added to a group's std, where peers agree most. Rewards in {-1, 0, 1} have a std of 0.07 at least in groups of up
to 200, so it changes nothing there; it holds rewards back that differ by less than a millionth."""

_ROUNDING = 1e-9
"""Relative. 0.1 + 0.2 and 0.3 are the same reward."""


def group_advantage(
    rewards: Sequence[float | None], groups: Sequence[str | None], *, std: bool = True
) -> tuple[Tensor, Tensor]:
    """Advantage float32 [B] of each sample, and mask bool [B]: False (and 0) where it says nothing.

    `groups` names each sample's group; a sample of no group (None) is a group of one.

    Raises:
        ValueError: the two differ in length.
    """
    advantages = [0.0] * len(rewards)
    kept = [False] * len(rewards)
    for rows, values in informative_groups(rewards, groups):
        mean = math.fsum(values) / len(values)
        scale = 1.0
        if std:
            scale = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)) + STD_EPS
        for row, value in zip(rows, values, strict=True):
            advantages[row], kept[row] = (value - mean) / scale, True
    return torch.tensor(advantages, dtype=torch.float32), torch.tensor(kept, dtype=torch.bool)


def leave_one_out_advantage(rewards: Sequence[float | None], groups: Sequence[str | None]) -> tuple[Tensor, Tensor]:
    """A_i = r_i - mean of the others of its group (RLOO, Ahmadian et al., arXiv 2402.14740); else as `group_advantage`.

    It is n / (n - 1) times r_i - mean of all n, and an unbiased estimate, since no reward is in its own baseline.
    """
    advantages = [0.0] * len(rewards)
    kept = [False] * len(rewards)
    for rows, values in informative_groups(rewards, groups):
        total = math.fsum(values)
        for row, value in zip(rows, values, strict=True):
            advantages[row], kept[row] = value - (total - value) / (len(values) - 1), True
    return torch.tensor(advantages, dtype=torch.float32), torch.tensor(kept, dtype=torch.bool)


def informative_groups(
    rewards: Sequence[float | None], groups: Sequence[str | None]
) -> list[tuple[list[int], list[float]]]:
    """Rows and rewards of each group that has at least two finite rewards, not all equal (but for rounding); in order
    of appearance.

    Raises:
        ValueError: `rewards` and `groups` differ in length.
    """
    members: dict[str, list[tuple[int, float]]] = {}
    for row, (reward, group) in enumerate(zip(rewards, groups, strict=True)):
        if group is not None and reward is not None and math.isfinite(reward):
            members.setdefault(group, []).append((row, float(reward)))
    found = []
    for pairs in members.values():
        values = [value for _, value in pairs]
        if not math.isclose(min(values), max(values), rel_tol=_ROUNDING, abs_tol=_ROUNDING):
            found.append(([row for row, _ in pairs], values))
    return found
