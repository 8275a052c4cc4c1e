"""`binary-rl`: every token of a turn gets the turn's reward (OpenClaw-RL, arXiv 2603.10165).

A_t = r. No baseline and no normalisation: r is +1 or -1. A missing or neutral reward is no credit at all: the turn is
masked, it is not a zero among the others.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def reward_advantage(reward: float | None, tokens: int) -> tuple[Tensor, Tensor]:
    """Advantage float32 [tokens] and mask bool [tokens]; the mask is all False for a reward of None, NaN or 0."""
    counts = reward is not None and math.isfinite(reward) and reward != 0
    value = float(reward) if counts and reward is not None else 0.0
    return torch.full((tokens,), value), torch.full((tokens,), counts, dtype=torch.bool)
