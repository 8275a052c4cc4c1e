"""Truncated importance sampling for the gap between the engine that sampled and the trainer that learns.

Engine and trainer give the same token slightly different log-probs (kernels, precision), and the trainer may be some
versions ahead. The token weight min(exp(l_prox - l_old), cap) corrects for both and is bounded above (Ionides 2008;
as TIS in Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training").
"""

from __future__ import annotations

import torch
from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""Nats. exp of a log-ratio overflows float32 at 88, and one such token would make the whole micro-batch's gradient NaN
(0 x inf behind the clip). Beyond e^20 a ratio says only that it is far outside any clip range, so it is held there and
gives no gradient. Peers differ: some bound at 20 as here, some not at all."""


def log_ratio(numerator_N: Tensor, denominator_N: Tensor, mask_N: Tensor) -> Tensor:
    """Difference of log-probs [N] within +-LOG_RATIO_BOUND; 0 where `mask_N` is False.

    Masked before the difference and so before any exp: what stands at a masked place (NaN, a fill value) reaches
    neither the value nor the gradient.
    """
    difference_N = torch.where(mask_N, numerator_N, 0.0) - torch.where(mask_N, denominator_N, 0.0)
    return difference_N.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def truncated_weight(proximal_N: Tensor, behaviour_N: Tensor, mask_N: Tensor, cap: float) -> Tensor:
    """min(exp(proximal - behaviour), cap) per token [N], without gradient; 1 where `mask_N` is False.

    Raises:
        ValueError: `cap` is not positive.
    """
    if cap <= 0:
        raise ValueError(f"the cap of an importance weight must be positive, not {cap}")
    return log_ratio(proximal_N, behaviour_N, mask_N).detach().exp().clamp(max=cap)
