"""`session-baseline`: a reward against what the same session earned before.

A = r - mean of the session's earlier rewards. A user who is always pleased, or never, says little with one more vote;
a change says much. The baseline only looks back, so it does not depend on the answer itself and adds no bias.

The first scored turn of a session has the baseline 0, the neutral reward, and so A = r as in `binary-rl`: most
sessions are short, and to leave their first turns out would leave most of the log out.

Ignores: turns without a reward, and the order of the earlier ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def session_baseline_advantage(
    rewards: Sequence[float | None], earlier: Sequence[Sequence[float | None]]
) -> tuple[Tensor, Tensor]:
    """Advantage float32 [B] of each sample, and mask bool [B]: False (and 0) without a finite reward, or where the
    reward is its baseline exactly.

    `earlier` holds, for each sample, the rewards of the turns before it in its session; None and NaN among them count
    for nothing.

    Raises:
        ValueError: the two differ in length.
    """
    advantages = []
    for reward, before in zip(rewards, earlier, strict=True):
        known = [value for value in before if value is not None and math.isfinite(value)]
        if reward is None or not math.isfinite(reward):
            advantages.append(0.0)
        else:
            advantages.append(reward - (math.fsum(known) / len(known) if known else 0.0))
    advantage_B = torch.tensor(advantages, dtype=torch.float32)
    return advantage_B, advantage_B != 0
