"""Rewards token by token: the turn's reward at its end, a KL penalty at each token, and the sum of what is to come.

Token t earns r_t = -beta KL_t, and the last kept token the turn's reward besides (KL in the reward, Ziegler et al.,
arXiv 1909.08593). The return is R_t = sum over k >= 0 of gamma^k r_(t+k).

Tokens that are not kept (tool output inside a response) are no steps: they earn nothing and consume no gamma, as in
verl; in slime and OpenRLHF they do consume it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def token_rewards(
    reward: float | None, mask_T: Tensor, *, kl_T: Tensor | None = None, kl_coefficient: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Reward of each token, float64 [T], and mask bool [T], all False without a finite reward.

    `kl_T` is an estimate of KL(policy || reference) per token in nats (`learner.losses.kl`), of log-probs from before
    the step; it carries no gradient.

    Raises:
        ValueError: a coefficient without `kl_T`, or another length than `mask_T`.
    """
    rewards_T = torch.zeros(mask_T.shape, dtype=torch.float64, device=mask_T.device)
    if reward is None or not math.isfinite(reward) or not mask_T.any():
        return rewards_T, torch.zeros_like(mask_T)
    if kl_coefficient:
        if kl_T is None:
            raise ValueError(f"kl_coefficient is {kl_coefficient}, but there are no KL estimates")
        if kl_T.shape != mask_T.shape:
            raise ValueError(f"{len(kl_T)} KL estimates for {len(mask_T)} response tokens")
        rewards_T = -kl_coefficient * torch.where(mask_T, kl_T.detach().double(), 0.0)
    rewards_T[int(mask_T.nonzero()[-1])] += reward
    return rewards_T, mask_T


def returns_to_go(rewards_T: Tensor, mask_T: Tensor, *, gamma: float = 1.0) -> Tensor:
    """R_t float64 [T]; 0 where `mask_T` is False."""
    kept = mask_T.nonzero()[:, 0]
    earned = rewards_T[kept].tolist()
    to_come = 0.0
    for place in range(len(earned) - 1, -1, -1):
        to_come = earned[place] + gamma * to_come
        earned[place] = to_come
    returns_T = torch.zeros(rewards_T.shape, dtype=torch.float64, device=rewards_T.device)
    returns_T[kept] = torch.tensor(earned, dtype=torch.float64, device=rewards_T.device)
    return returns_T
