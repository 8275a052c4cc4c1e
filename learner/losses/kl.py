"""Estimators of KL(policy || reference) from sampled tokens (Schulman, "Approximating KL Divergence", 2020).

With d = l_policy - l_reference: k1 = d (unbiased, may be negative), k2 = d^2 / 2 (biased, low variance),
k3 = exp(-d) - 1 + d (unbiased and never negative). In k3, d is held within +-20 so that exp stays finite.

The tokens must be samples of the first argument. As a loss, k1's gradient is zero in expectation.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from learner.importance import log_prob_gap, log_ratio

KlEstimator = Literal["k1", "k2", "k3"]


def kl_estimate(policy_N: Tensor, reference_N: Tensor, mask_N: Tensor, estimator: KlEstimator) -> Tensor:
    """Per-token estimate [N] in nats; 0 where `mask_N` is False. Masked before exp, and finite for a log-prob of -inf.
    No gradient reaches the reference.

    Raises:
        ValueError: no such estimator.
    """
    difference_N = log_prob_gap(policy_N, reference_N.detach(), mask_N)
    if estimator == "k1":
        return difference_N
    if estimator == "k2":
        return difference_N.square() / 2
    if estimator == "k3":
        bounded_N = log_ratio(policy_N, reference_N.detach(), mask_N)
        return torch.expm1(-bounded_N) + bounded_N
    raise ValueError(f"no KL estimator {estimator!r}; there are k1, k2, k3")
