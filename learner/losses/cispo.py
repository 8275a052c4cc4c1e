"""CISPO: the importance weight is clipped, the gradient never (MiniMax-M1, arXiv 2506.13585, eq. 4 and 5).

loss_t = -sg[clip(ratio_t, 1 - clip_low, 1 + clip_high)] A_t l_new,t. It is REINFORCE with a bounded weight: a token
beyond the bounds, say a rare one that begins a new thought, still learns. A large `clip_low` leaves the lower bound
out, as in the paper's runs; `clip_high` is added to 1 (a peer takes its setting for the cap itself).

Ignores: any bound on how far a token may move within the step; the flags only tell where the weight was held.
"""

from __future__ import annotations

import torch
from torch import Tensor

from learner.importance import known, log_ratio
from learner.losses.clip_loss import ClipLoss


def cispo(
    new_N: Tensor, old_N: Tensor, advantage_N: Tensor, mask_N: Tensor, *, clip_low: float, clip_high: float
) -> ClipLoss:
    """Loss per token [N]; 0 where `mask_N` is False. A log-prob of -inf counts as LEAST_LOG_PROB, without gradient.

    The value means little, only its gradient is meant: -weight A per token.
    """
    ratio_N = log_ratio(new_N, old_N, mask_N).detach().exp()
    weight_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)
    loss_N = -weight_N * torch.where(mask_N, advantage_N, 0.0) * known(new_N, mask_N)
    return ClipLoss(
        loss=loss_N,
        ratio=ratio_N,
        clipped_high=mask_N & (ratio_N > 1 + clip_high),
        clipped_low=mask_N & (ratio_N < 1 - clip_low),
    )
