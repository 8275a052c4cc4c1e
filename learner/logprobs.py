"""Log-probs and entropy of chosen tokens without ever holding the logits of a whole batch.

Shapes: N tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from learner.collate import Forward

CHUNK_TOKENS = 256
"""Tokens whose logits exist at once: 256 x 49,152 float32 are 50 MB. Smaller chunks gain no memory beside the model
and lose matrix-product speed."""


def chunk_log_probs(hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and entropy of each distribution, both float32 [N], in nats."""
    logits_NV = (hidden_NH @ weight_VH.T).float()
    log_probs_NV = torch.log_softmax(logits_NV, dim=-1)
    chosen_N = log_probs_NV.gather(-1, targets_N[:, None])[:, 0]
    # xlogy convention: a probability of exactly 0 adds 0, where 0 * -inf would be NaN.
    entropy_N = -(log_probs_NV.exp() * log_probs_NV.clamp_min(torch.finfo(torch.float32).min)).sum(-1)
    return chosen_N, entropy_N


def token_log_probs(
    hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor, chunk: int = CHUNK_TOKENS
) -> tuple[Tensor, Tensor]:
    """`chunk_log_probs` over any N in chunks; logits are computed again in the backward pass instead of kept."""
    chosen, entropy = [], []
    for start in range(0, len(targets_N), chunk):
        part = slice(start, start + chunk)
        if torch.is_grad_enabled():
            result = checkpoint(chunk_log_probs, hidden_NH[part], weight_VH, targets_N[part], use_reentrant=False)
        else:
            result = chunk_log_probs(hidden_NH[part], weight_VH, targets_N[part])
        chosen.append(result[0])
        entropy.append(result[1])
    return torch.cat(chosen), torch.cat(entropy)


def response_log_probs(model: Any, forward: Forward) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of the response tokens of one forward pass, both float32 [N], in `forward`'s order.

    `model` is a causal language model of transformers: a decoder `model.model` and a head `model.lm_head` without
    bias. The device and dtype are the model's.
    """
    device = model.lm_head.weight.device
    hidden_BTH = model.model(input_ids=forward.input_ids.to(device), use_cache=False).last_hidden_state
    positions = forward.positions.to(device)
    hidden_NH = hidden_BTH[positions[:, 0], positions[:, 1]]
    return token_log_probs(hidden_NH, model.lm_head.weight, forward.targets.to(device))
