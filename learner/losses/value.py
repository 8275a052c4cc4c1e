"""The critic's loss with a clipped change (Schulman et al. 2017, as in the authors' code).

loss_t = 1/2 max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2): a value that already moved by c towards its return
in this micro-batch moves no further.

Ignores: scale. A peer leaves the 1/2 out, which is twice the learning rate of the critic.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ValueLoss:
    """Both [N]: `loss`, and `clipped` where the clipped error was the larger one, so that no gradient flows."""

    loss: Tensor
    clipped: Tensor


def value_loss(
    value_N: Tensor, old_value_N: Tensor, return_N: Tensor, mask_N: Tensor, *, clip: float | None
) -> ValueLoss:
    """Per token; 0 where `mask_N` is False. `old_value_N` (from before the step) and `return_N` carry no gradient.

    Raises:
        ValueError: `clip` is not positive.
    """
    if clip is not None and clip <= 0:
        raise ValueError(f"the clip of a value must be positive, or None for no clip, not {clip}")
    value_N, old_N, return_N = (
        torch.where(mask_N, each, 0.0) for each in (value_N, old_value_N.detach(), return_N.detach())
    )
    free_N = (value_N - return_N).square()
    if clip is None:
        return ValueLoss(free_N / 2, torch.zeros_like(mask_N))
    bounded_N = (torch.minimum(torch.maximum(value_N, old_N - clip), old_N + clip) - return_N).square()
    return ValueLoss(torch.maximum(free_N, bounded_N) / 2, mask_N & (bounded_N > free_N))
