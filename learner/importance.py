"""Truncated importance sampling for the gap between the engine that sampled and the trainer that learns.

Engine and trainer give the same token slightly different log-probs (kernels, precision), and the trainer may be some
versions ahead. The token weight min(exp(l_prox - l_old), cap) corrects for both and is bounded above (Ionides 2008;
as TIS in Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training").
"""

from __future__ import annotations

import torch
from torch import Tensor


def truncated_weight(proximal_N: Tensor, behaviour_N: Tensor, mask_N: Tensor, cap: float) -> Tensor:
    """min(exp(proximal - behaviour), cap) per token [N], without gradient; 1 where `mask_N` is False.

    Raises:
        ValueError: `cap` is not positive.
    """
    if cap <= 0:
        raise ValueError(f"the cap of an importance weight must be positive, not {cap}")
    log_weight_N = (torch.where(mask_N, proximal_N, 0.0) - torch.where(mask_N, behaviour_N, 0.0)).detach()
    return log_weight_N.exp().clamp(max=cap)
