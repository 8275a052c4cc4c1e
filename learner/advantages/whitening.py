"""Advantages of a whole micro-batch brought to mean 0 and variance 1 over its kept tokens.

(x - mean) / sqrt(var + 1e-8), with the unbiased variance (as verl and slime; OpenRLHF divides by n). Statistics run in
float64. The step of `reinforce++` that makes one learning rate fit rewards of any scale; `ppo` may use it after GAE.
"""

from __future__ import annotations

import torch
from torch import Tensor

VARIANCE_EPS = 1e-8
"""As in the peers compared."""


def whiten(values_N: Tensor, mask_N: Tensor) -> tuple[Tensor, Tensor]:
    """Whitened values [N] in their dtype, 0 where not kept, and mask bool [N].

    Fewer than two kept tokens, or no variance among them, say nothing: then the mask is all False.
    """
    kept = values_N[mask_N].double()
    if kept.numel() < 2 or bool(kept.min() == kept.max()):
        return torch.zeros_like(values_N), torch.zeros_like(mask_N)
    scaled_N = (values_N.double() - kept.mean()) / (kept.var() + VARIANCE_EPS).sqrt()
    return torch.where(mask_N, scaled_N, 0.0).to(values_N.dtype), mask_N
