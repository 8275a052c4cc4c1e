"""How token losses become one number: the weight of each token, known before any forward pass.

The weights depend only on masks over the whole micro-batch. So the sum of weight x loss is the same however the
micro-batch is split into forward passes.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from learner.importance import sequence_sum

Aggregation = Literal["token_mean", "sequence_mean", "sequence_sum", "constant"]


def token_weights(
    mask_N: Tensor, owners_N: Tensor, aggregation: Aggregation, *, constant: float | None = None
) -> Tensor:
    """Weight of each token, float32 [N]; 0 where `mask_N` is False. Sequences without a kept token do not count.

    - token_mean: 1 / kept tokens of the micro-batch (DAPO).
    - sequence_mean: the mean over sequences of each one's token mean (GRPO, 2402.03300).
    - sequence_sum: the mean over sequences of each one's token sum.
    - constant: as sequence_sum, divided by `constant` instead of a length (Dr. GRPO, 2503.20783).

    `owners_N` int64 [N] names the sequence of each token.

    Raises:
        ValueError: no such aggregation, or "constant" without a positive `constant`.
    """
    kept_N = mask_N.float()
    if not mask_N.any():
        return kept_N
    lengths = sequence_sum(mask_N, owners_N).float()
    sequences = float((lengths > 0).sum())
    if aggregation == "token_mean":
        return kept_N / kept_N.sum()
    if aggregation == "sequence_mean":
        return kept_N / lengths[owners_N].clamp_min(1.0) / sequences
    if aggregation == "sequence_sum":
        return kept_N / sequences
    if aggregation == "constant":
        if constant is None or constant <= 0:
            raise ValueError(f"aggregation 'constant' needs a positive constant, not {constant}")
        return kept_N / constant / sequences
    raise ValueError(f"no aggregation {aggregation!r}")
