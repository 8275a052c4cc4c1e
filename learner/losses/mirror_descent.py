"""`k1.5`: policy mirror descent (Kimi k1.5, arXiv 2501.12599, section 2.3.2).

loss_t = -A_t d_t + tau / 2 d_t^2 with d_t = l_new,t - l_old,t and A = r - mean r. Its gradient is
-(A_t - tau d_t) grad l_new,t: at the start of a step that of REINFORCE with a baseline, then pulled back to where the
step began, with equal force in both directions and no clip.

Ignores: the cross terms between the tokens of a sequence (the paper squares the log-ratio of the whole sequence), and
any importance weight, as the paper does; `learner.importance.mismatch_weights` may be multiplied on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from learner.importance import log_prob_gap


def mirror_descent(new_N: Tensor, old_N: Tensor, advantage_N: Tensor, mask_N: Tensor, *, tau: float) -> Tensor:
    """Loss per token [N]; 0 where `mask_N` is False. `old_N` carries no gradient.

    The log-ratio is not held at 20 nats here: nothing is exponentiated, and the pull must not end where it is needed.

    Raises:
        ValueError: `tau` is negative.
    """
    if tau < 0:
        raise ValueError(f"tau pulls back to the old policy and must not be negative, not {tau}")
    gap_N = log_prob_gap(new_N, old_N.detach(), mask_N)
    return -torch.where(mask_N, advantage_N, 0.0) * gap_N + tau / 2 * gap_N.square()
