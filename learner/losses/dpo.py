"""`dpo`: the better of two answers to one prompt (Rafailov et al., arXiv 2305.18290, eq. 7).

loss = -log sigmoid(beta (g_chosen - g_rejected)), where g = sum over a response of l_new - l_ref.

Ignores: how much better the chosen one is, and lengths: g is a sum, so long answers move more.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from learner.importance import log_prob_gap


@dataclass(frozen=True, eq=False)
class PairLoss:
    """All [P]: `loss`, and `margin`, beta (g_chosen - g_rejected), positive where the pair is in the right order."""

    loss: Tensor
    margin: Tensor


def response_gain(new_N: Tensor, reference_N: Tensor, mask_N: Tensor, owners_N: Tensor, responses: int) -> Tensor:
    """g of each response, [R] with R = `responses`, in the dtype of `new_N`; 0 for one without a kept token.

    `owners_N` int64 [N] names the response of each token. No gradient reaches the reference.
    """
    gap_N = log_prob_gap(new_N, reference_N.detach(), mask_N)
    sum_R = torch.zeros(responses, dtype=torch.float64, device=new_N.device).index_add(0, owners_N, gap_N.double())
    return sum_R.to(new_N.dtype)


def dpo(chosen_P: Tensor, rejected_P: Tensor, *, beta: float = 0.1) -> PairLoss:
    """Loss of each pair, from `response_gain` of its chosen and its rejected response.

    Raises:
        ValueError: `beta` is not positive.
    """
    if beta <= 0:
        raise ValueError(f"beta scales the implicit reward and must be positive, not {beta}")
    margin_P = beta * (chosen_P - rejected_P)
    return PairLoss(-logsigmoid(margin_P), margin_P.detach())
