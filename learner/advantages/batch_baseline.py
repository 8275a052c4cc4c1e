"""`reinforce++`: a reward against the whole micro-batch (REINFORCE++, arXiv 2501.03262; SAMPO).

A = (r - mean) / sqrt(var + 1e-8), mean and unbiased variance over the kept tokens of the micro-batch, as in verl and
slime: a long answer weighs more in the baseline, as it does in a token-mean loss. No critic, no groups.

With a discount or a KL penalty in the reward the return differs from token to token; then use
`returns.token_rewards`, `returns.returns_to_go` and `whitening.whiten`, of which this is the case gamma 1 without KL.

Ignores: prompts (an easy one is not told from a good answer), and which tokens earned the reward. The recipe corrects
for the sampler (`learner.importance`) and watches entropy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from learner.advantages.whitening import whiten


def batch_baseline_advantage(rewards: Sequence[float | None], lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Advantage float32 [B] of each sample, and mask bool [B]: False (and 0) where it says nothing.

    `lengths` counts the kept tokens of each sample. A sample without reward or tokens is in no statistic. One sample
    alone, or a micro-batch whose rewards are all equal, says nothing.

    Raises:
        ValueError: the two differ in length.
    """
    known = [
        reward if reward is not None and math.isfinite(reward) and length else None
        for reward, length in zip(rewards, lengths, strict=True)
    ]
    values_B = torch.tensor([reward or 0.0 for reward in known], dtype=torch.float64)
    mask_B = torch.tensor([reward is not None for reward in known], dtype=torch.bool)
    tokens_B = torch.tensor(list(lengths), dtype=torch.long)
    advantage_N, mask_N = whiten(values_B.repeat_interleave(tokens_B), mask_B.repeat_interleave(tokens_B))
    # Every token of a sample has the same value, so its first one speaks for it.
    first_B = (tokens_B.cumsum(0) - tokens_B)[mask_B]
    advantage_B = torch.zeros(len(known), dtype=torch.float32)
    advantage_B[mask_B] = advantage_N[first_B].float()
    if not mask_N.any():
        mask_B = torch.zeros_like(mask_B)
    return advantage_B, mask_B
