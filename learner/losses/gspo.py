"""GSPO: one ratio for a whole sequence (Zheng et al. 2025, arXiv 2507.18071; eq. 7 and, for token advantages, eq. 14).

s_i = exp(mean over the kept tokens of l_new - l_old), and per token s_i,t = sg[s_i] exp(l_new,t - sg[l_new,t]): each
token has its sequence's ratio as value and its own gradient. The clip bounds s_i; its usual range is 3e-4 / 4e-4, a
thousandth of PPO's, since a mean of many log-ratios hardly moves.

Where the advantage is the same over a sequence, this is the sequence form exactly. Where it differs within one, each
token keeps its own advantage (as in verl); peers that let the gradient run through the mean give every token the
sequence's mean advantage instead. The paper's aggregation is the mean over sequences of token means.

Ignores: a sequence split over two calls (its ratio needs all of its tokens).
"""

from __future__ import annotations

import torch
from torch import Tensor

from learner.importance import LOG_RATIO_BOUND, known, log_ratio, sequence_mean
from learner.losses.clip_loss import ClipLoss


def gspo(
    new_N: Tensor,
    old_N: Tensor,
    advantage_N: Tensor,
    mask_N: Tensor,
    owners_N: Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> ClipLoss:
    """-min(s A, clip(s, 1 - clip_low, 1 + clip_high) A) per token [N]; 0 where `mask_N` is False.

    `owners_N` int64 [N] names the sequence of each token. Floats in float32 or float64, as `new_N`.
    """
    mean_S = sequence_mean(log_ratio(new_N, old_N, mask_N).detach(), mask_N, owners_N)
    kept_N = known(new_N, mask_N)
    exponent_N = mean_S[owners_N].to(new_N.dtype) + kept_N - kept_N.detach()
    ratio_N = exponent_N.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
    advantage_N = torch.where(mask_N, advantage_N, 0.0)
    bounded_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)
    loss_N = torch.maximum(-ratio_N * advantage_N, -bounded_N * advantage_N)
    return ClipLoss(
        loss=loss_N,
        ratio=torch.where(mask_N, ratio_N, 1.0),
        clipped_high=mask_N & (advantage_N > 0) & (ratio_N > 1 + clip_high),
        clipped_low=mask_N & (advantage_N < 0) & (ratio_N < 1 - clip_low),
    )
