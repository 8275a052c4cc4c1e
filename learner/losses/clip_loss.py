"""What a clipped loss gives back."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class ClipLoss:
    """Per-token results, all [N]: `loss` (to be minimised), `ratio`, and where the clip took the gradient away.

    `topk_surrogate` gives `ratio` and the flags per vocabulary entry, [N, K].
    """

    loss: Tensor
    ratio: Tensor
    clipped_high: Tensor
    clipped_low: Tensor
