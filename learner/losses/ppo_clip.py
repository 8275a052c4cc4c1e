"""The clipped surrogate of PPO (Schulman et al. 2017, eq. 7), with clip-higher and the dual clip.

Clip-higher: an upper bound of its own (DAPO, arXiv 2503.14476). Dual clip: for negative advantages the loss is bounded
by -c A (Ye et al. 2020, arXiv 1912.09729, eq. 5).
"""

from __future__ import annotations

import torch
from torch import Tensor

from learner.importance import log_ratio
from learner.losses.clip_loss import ClipLoss


def ppo_clip(
    new_N: Tensor,
    old_N: Tensor,
    advantage_N: Tensor,
    mask_N: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> ClipLoss:
    """-min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A) per token; 0 where `mask_N` is False.

    Log-probs are masked and the log-ratio is bounded before exp (`learner.importance.log_ratio`). `old_N` carries no
    gradient.
    """
    ratio_N = log_ratio(new_N, old_N.detach(), mask_N).exp()
    advantage_N = torch.where(mask_N, advantage_N, 0.0)
    free_N = -ratio_N * advantage_N
    bounded_N = -ratio_N.clamp(1 - clip_low, 1 + clip_high) * advantage_N
    loss_N = torch.maximum(free_N, bounded_N)
    if dual_clip is not None:
        loss_N = torch.where(advantage_N < 0, torch.minimum(loss_N, -dual_clip * advantage_N), loss_N)
    return ClipLoss(
        loss=torch.where(mask_N, loss_N, 0.0),
        ratio=ratio_N,
        clipped_high=mask_N & (advantage_N > 0) & (ratio_N > 1 + clip_high),
        clipped_low=mask_N & (advantage_N < 0) & (ratio_N < 1 - clip_low),
    )
