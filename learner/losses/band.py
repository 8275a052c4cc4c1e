"""`k2.5`: tokens whose log-ratio leaves a band give no gradient (Kimi K2.5, technical report, 2026).

loss_t = -clip(ratio_t, e^alpha, e^beta) A_t, with log-ratio l_new - l_old. Unlike PPO's clip, which stops a token only
where going on would be rewarded, the band stops it on either side whatever the sign of the advantage: a token so far
from its sampler is an artefact of the engine or of staleness, and is not to be learnt from at all.

Ignores: the report's squared log-ratio penalty, which is `learner.losses.mirror_descent`'s.
"""

from __future__ import annotations

import torch
from torch import Tensor

from learner.importance import log_ratio
from learner.losses.clip_loss import ClipLoss


def band(new_N: Tensor, old_N: Tensor, advantage_N: Tensor, mask_N: Tensor, *, alpha: float, beta: float) -> ClipLoss:
    """Loss per token [N]; 0 where `mask_N` is False. `alpha` < 0 < `beta` in nats; `old_N` carries no gradient.

    The flags say where the band took the gradient away, whatever the advantage.

    Raises:
        ValueError: the band does not hold 0, where every step begins.
    """
    if not alpha < 0 < beta:
        raise ValueError(f"the band of log-ratios must hold 0: alpha < 0 < beta, not [{alpha}, {beta}]")
    log_N = log_ratio(new_N, old_N.detach(), mask_N)
    loss_N = -log_N.clamp(alpha, beta).exp() * torch.where(mask_N, advantage_N, 0.0)
    return ClipLoss(
        loss=loss_N,
        ratio=log_N.exp(),
        clipped_high=mask_N & (log_N > beta),
        clipped_low=mask_N & (log_N < alpha),
    )
