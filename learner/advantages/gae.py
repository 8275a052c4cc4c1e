"""`ppo`: generalised advantage estimation over one response's tokens (Schulman et al., arXiv 1506.02438, eq. 11, 16).

delta_t = r_t + gamma V_(t+1) - V_t and A_t = delta_t + gamma lambda A_(t+1); after the last kept token both are 0: the
turn ends there. Return R_t = A_t + V_t is what the critic learns. r_t is the turn's reward at the last kept token, and
-beta KL_t at each (`returns.token_rewards`).

Tokens that are not kept are no states: the token before one sees the value of the kept token after it, as in verl and
AReaL. Peers differ (slime takes them for ordinary states, OpenRLHF for states of value 0).

Ignores: that a truncated answer did not end; its reward, if it has one, counts as final.
"""

from __future__ import annotations

import torch
from torch import Tensor

from learner.advantages.returns import token_rewards


def gae(
    reward: float | None,
    value_T: Tensor,
    mask_T: Tensor,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    kl_T: Tensor | None = None,
    kl_coefficient: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Advantage [T] and return [T], both in the dtype of `value_T` and 0 where not kept, and mask bool [T].

    `value_T` are the critic's values of the states in which the tokens were sampled, `mask_T` bool [T] the tokens that
    the policy sampled. The mask is all False without a finite reward.

    Raises:
        ValueError: a length differs, or a KL coefficient has no KL.
    """
    if value_T.shape != mask_T.shape:
        raise ValueError(f"{len(value_T)} values for {len(mask_T)} response tokens")
    rewards_T, mask_T = token_rewards(reward, mask_T, kl_T=kl_T, kl_coefficient=kl_coefficient)
    kept = mask_T.nonzero()[:, 0]
    rewards, values = rewards_T[kept].tolist(), value_T.detach()[kept].tolist()
    advantages = [0.0] * len(values)
    next_value = next_advantage = 0.0
    for place in range(len(values) - 1, -1, -1):
        delta = rewards[place] + gamma * next_value - values[place]
        advantages[place] = next_advantage = delta + gamma * lam * next_advantage
        next_value = values[place]
    advantage_T = torch.zeros_like(value_T, requires_grad=False)
    return_T = torch.zeros_like(value_T, requires_grad=False)
    advantage_T[kept] = advantage_T.new_tensor(advantages)
    return_T[kept] = return_T.new_tensor([a + v for a, v in zip(advantages, values, strict=True)])
    return advantage_T, return_T, mask_T
