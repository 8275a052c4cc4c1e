"""`opd-topk`: a clipped surrogate per vocabulary entry, summed (OpenClaw-RL, arXiv 2603.10165).

At each token the student's k likeliest entries S stand for the whole distribution. Each entry v has an advantage of
its own, A_v = clip(l_T,v - l_old,v, +-C) softmax_S(l_old)_v (`learner.advantages.topk`), which already holds the
probability that it would have been sampled; so the sum over S is the expectation that one sampled token estimates.

loss_t = sum over v in S of -min(ratio_v A_v, clip(ratio_v, 1 - clip_low, 1 + clip_high) A_v).

Ignores: what lies outside S, which learns only through the softmax.
"""

from __future__ import annotations

from torch import Tensor

from learner.losses.clip_loss import ClipLoss
from learner.losses.ppo_clip import ppo_clip


def topk_surrogate(
    new_NK: Tensor,
    old_NK: Tensor,
    advantage_NK: Tensor,
    mask_NK: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> ClipLoss:
    """`loss` per token [N], `ratio` and flags per entry [N, K]; an entry whose `mask_NK` is False adds nothing.

    `new_NK` and `old_NK`: the student's log-probs of the entries, of the full softmax; `old_NK` carries no gradient.
    """
    entries = ppo_clip(
        new_NK, old_NK, advantage_NK, mask_NK, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip
    )
    return ClipLoss(entries.loss.sum(-1), entries.ratio, entries.clipped_high, entries.clipped_low)
