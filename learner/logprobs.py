"""Log-probs and entropy of chosen tokens without ever holding the logits of a whole batch.

The head and the softmax run in chunks of tokens. Only hidden states are kept; the backward pass computes each chunk's
logits again. At 32k tokens and a vocabulary of 152k, float32 logits alone would be 20 GB.

Shapes: N tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learner.collate import Forward

CHUNK_TOKENS = 512
"""Tokens whose logits exist at once: 512 x 49,152 float32 are 100 MB. Larger chunks gain no speed in the products,
smaller ones add to the head's gradient more often."""

_LEAST = -1e30
"""Stands for a log-prob of -inf in products: a probability of exactly 0 adds 0, where 0 * -inf would be NaN."""


class _ChosenLogProbs(torch.autograd.Function):
    """Softmax statistics with their gradients in closed form.

    With p = softmax(logits), l = log p, H = -sum p l:
    d l_y / d logits_v = [v = y] - p_v and d H / d logits_v = -p_v (l_v + H).
    """

    @staticmethod
    def forward(ctx: Any, hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
        chosen, entropies = [], []
        for start in range(0, len(targets_N), chunk):
            part = slice(start, start + chunk)
            log_probs_NV = _log_softmax(hidden_NH[part], weight_VH)
            chosen.append(log_probs_NV.gather(-1, targets_N[part, None])[:, 0])
            probs_NV = log_probs_NV.exp()
            entropies.append(-probs_NV.mul_(log_probs_NV.clamp_min_(_LEAST)).sum(-1))
        entropy_N = torch.cat(entropies)
        ctx.save_for_backward(hidden_NH, weight_VH, targets_N, entropy_N)
        ctx.chunk = chunk
        ctx.set_materialize_grads(False)  # so that an entropy that is only logged costs nothing here
        return torch.cat(chosen), entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, Tensor, None, None]:
        chosen_grad_N, entropy_grad_N = grads
        hidden_NH, weight_VH, targets_N, entropy_N = ctx.saved_tensors
        hidden_grad_NH = torch.empty_like(hidden_NH)
        weight_grad_VH: Tensor | None = None
        for start in range(0, len(targets_N), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            log_probs_NV = _log_softmax(hidden_NH[part], weight_VH)
            probs_NV = log_probs_NV.exp()
            logits_grad_NV = torch.zeros_like(probs_NV) if chosen_grad_N is None else probs_NV
            if entropy_grad_N is not None:
                surprise_NV = log_probs_NV.clamp_min_(_LEAST).add_(entropy_N[part, None])
                entropy_part_NV = surprise_NV.mul_(probs_NV).mul_(-entropy_grad_N[part, None])
            if chosen_grad_N is not None:
                logits_grad_NV.mul_(-chosen_grad_N[part, None])
                logits_grad_NV.scatter_add_(-1, targets_N[part, None], chosen_grad_N[part, None])
            if entropy_grad_N is not None:
                logits_grad_NV.add_(entropy_part_NV)
            rounded_NV = logits_grad_NV.to(weight_VH.dtype)
            hidden_grad_NH[part] = rounded_NV @ weight_VH
            product_VH = rounded_NV.T @ hidden_NH[part]
            if len(targets_N) <= ctx.chunk:
                weight_grad_VH = product_VH
            elif weight_grad_VH is None:
                weight_grad_VH = product_VH.to(probs_NV.dtype)  # sums over chunks are not rounded to bfloat16
            else:
                weight_grad_VH += product_VH
        assert weight_grad_VH is not None
        return hidden_grad_NH, weight_grad_VH.to(weight_VH.dtype), None, None


def token_log_probs(
    hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor, chunk: int = CHUNK_TOKENS
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and entropy of each distribution, both [N], in nats.

    Products run in the dtype of the arguments, the softmax in float32 (float64 for float64). N must not be 0.
    """
    chosen_N, entropy_N = _ChosenLogProbs.apply(  # type: ignore[no-untyped-call]
        hidden_NH, weight_VH, targets_N, chunk
    )
    return chosen_N, entropy_N


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


def _log_softmax(hidden_NH: Tensor, weight_VH: Tensor) -> Tensor:
    logits_NV = hidden_NH @ weight_VH.T
    return torch.log_softmax(logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float(), dim=-1)
