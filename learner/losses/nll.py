"""`sft`: the negative log-likelihood of given tokens, each with a weight.

loss_t = -w_t l_t. The tokens were written by someone else (a person, a stronger model, an earlier version), so there is
no ratio and no sampler. Weights of 1 are plain fine-tuning; a reward as weight is reward-weighted regression.

Ignores: who wrote the tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from learner.importance import known


def nll(new_N: Tensor, mask_N: Tensor, weight_N: Tensor | None = None) -> Tensor:
    """Loss per token [N]; 0 where `mask_N` is False. A log-prob of -inf counts as LEAST_LOG_PROB, without gradient."""
    loss_N = -known(new_N, mask_N)
    return loss_N if weight_N is None else loss_N * torch.where(mask_N, weight_N.detach(), 0.0)
