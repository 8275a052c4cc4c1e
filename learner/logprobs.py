"""Log-probs, entropy and top tokens of a head without ever holding the logits of a whole batch.

The head and the softmax run in tiles of some tokens by some vocabulary, which are joined by their log-sum-exp. Only
hidden states are kept; the backward pass computes each tile's logits again. So memory depends neither on the number
of tokens times the vocabulary nor on how many ids are asked for: at 32k tokens and a vocabulary of 152k, float32
logits alone would be 20 GB. On CPUs a tile stays in the cache from the product to the last use of its softmax.

Shapes: N tokens, H hidden size, V vocabulary, K ids asked for at each token, T tokens of a packed row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from learner.attention import Packing, use_packed_attention
from learner.collate import Forward
from learner.sharding import with_weights

Tile = tuple[int, int]
"""Tokens and vocabulary entries whose logits exist at once."""

CPU_TILE: Tile = (2048, 1024)
"""8 MB of float32, which the third level of the cache holds. Fewer tokens would read the head's weight more often, and
fewer entries make the products too thin."""

CUDA_TILE: Tile = (2048, 32768)
"""256 MB: large products and few launches."""


@dataclass(frozen=True, eq=False)
class Scores:
    """What a forward pass says of N tokens, in nats.

    `chosen` [N]: log-prob of the token itself. `entropy` [N] of the distribution. `at_ids` [N, K]: log-probs of the
    ids asked for. These three carry gradients. `top_ids` int64 [N, k] and `top_logprobs` [N, k]: the likeliest tokens,
    likeliest first, without a gradient. All float32 (float64 of a float64 model); None where not asked for.
    """

    chosen: Tensor
    entropy: Tensor
    at_ids: Tensor | None = None
    top_ids: Tensor | None = None
    top_logprobs: Tensor | None = None


def response_log_probs(model: Any, forward: Forward) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of the response tokens of one forward pass, both float32 [N], in `forward`'s order."""
    scores = response_scores(model, forward)
    return scores.chosen, scores.entropy


def response_scores(
    model: Any,
    forward: Forward,
    *,
    at_ids_NK: Tensor | None = None,
    top_k: int | None = None,
    temperature: float | Tensor = 1.0,
) -> Scores:
    """Scores of the response tokens of one forward pass, in `forward`'s order; the device and dtype are the model's.

    Args:
        model: causal language model of transformers: a decoder `model.model` and a head `model.lm_head` without bias.
        forward: the packed row.
        at_ids_NK: int64 [N, K], rows in the order of `forward.flat`: ids whose log-probs are asked for.
        top_k: how many of the likeliest ids are asked for.
        temperature: logits are divided by it, so that log-probs are those of the distribution sampled from; one number
            or float [N].
    """

    def work() -> Raw:
        hidden_NH = _hidden(model, forward)
        return _raw_scores(
            hidden_NH,
            model.lm_head.weight,
            forward.targets.to(hidden_NH.device),
            at_ids_NK=None if at_ids_NK is None else at_ids_NK.to(hidden_NH.device),
            top_k=top_k,
            temperature=temperature,
        )

    return _scores(with_weights(model, work), asked=at_ids_NK is not None, top_k=top_k)


def response_hidden(model: Any, forward: Forward) -> Tensor:
    """The last hidden state before each response token, [N, H], in `forward`'s order: what predicts it, and what a
    critic values."""
    return with_weights(model, lambda: _hidden(model, forward))


def _hidden(model: Any, forward: Forward) -> Tensor:
    use_packed_attention(model)
    device = next(model.model.parameters()).device
    packing = Packing.of(forward.lengths, device)
    hidden_1TH = model.model(
        input_ids=forward.input_ids.to(device),
        position_ids=forward.position_ids.to(device),
        use_cache=False,
        **packing.arguments(),
    ).last_hidden_state
    hidden_NH: Tensor = hidden_1TH[0].index_select(0, forward.positions.to(device))
    return hidden_NH


def token_log_probs(
    hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor, tile: Tile | None = None
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and entropy of each distribution, both [N], in nats."""
    scores = token_scores(hidden_NH, weight_VH, targets_N, tile=tile)
    return scores.chosen, scores.entropy


def token_scores(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    targets_N: Tensor,
    *,
    at_ids_NK: Tensor | None = None,
    top_k: int | None = None,
    temperature: float | Tensor = 1.0,
    tile: Tile | None = None,
) -> Scores:
    """Scores of tokens from hidden states and the head's weight; see `response_scores`.

    Products run in the dtype of the arguments, everything else in float32 (float64 for float64).
    """
    raw = _raw_scores(
        hidden_NH, weight_VH, targets_N, at_ids_NK=at_ids_NK, top_k=top_k, temperature=temperature, tile=tile
    )
    return _scores(raw, asked=at_ids_NK is not None, top_k=top_k)


Raw = tuple[Tensor, Tensor, Tensor, Tensor]
"""Log-probs [N, 1 + K] of each token and then of the ids asked for; entropies; ids and log-probs of the likeliest."""


def _raw_scores(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    targets_N: Tensor,
    *,
    at_ids_NK: Tensor | None,
    top_k: int | None,
    temperature: float | Tensor,
    tile: Tile | None = None,
) -> Raw:
    ids_NK = targets_N[:, None] if at_ids_NK is None else torch.cat([targets_N[:, None], at_ids_NK], dim=1)
    inverse: Tensor | None = None
    if isinstance(temperature, Tensor) or temperature != 1.0:
        exact = _statistics_dtype(hidden_NH.dtype)
        inverse = torch.as_tensor(temperature, dtype=exact, device=hidden_NH.device).reciprocal()
        inverse = inverse.expand(len(hidden_NH))[:, None]
    size = tile or (CUDA_TILE if hidden_NH.is_cuda else CPU_TILE)
    raw: Raw = _HeadScores.apply(  # type: ignore[no-untyped-call]
        hidden_NH, weight_VH, ids_NK, inverse, min(top_k or 0, len(weight_VH)), size
    )
    return raw


def _scores(raw: Raw, *, asked: bool, top_k: int | None) -> Scores:
    logprobs_NK, entropy_N, top_ids, top_logprobs = raw
    return Scores(
        chosen=logprobs_NK[:, 0],
        entropy=entropy_N,
        at_ids=logprobs_NK[:, 1:] if asked else None,
        top_ids=top_ids if top_k else None,
        top_logprobs=top_logprobs if top_k else None,
    )


class _HeadScores(torch.autograd.Function):
    """Log-probs at some ids and entropy, with their gradients in closed form.

    With logits x, p = softmax(x), l = log p, H = -sum p l:
    d l_y / d x_v = [v = y] - p_v and d H / d x_v = -p_v (l_v + H).
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        ids_NK: Tensor,
        inverse_N1: Tensor | None,
        top_k: int,
        tile: Tile,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        exact = _statistics_dtype(hidden_NH.dtype)
        count, vocabulary = len(hidden_NH), len(weight_VH)
        at_NK = torch.empty(ids_NK.shape, dtype=exact, device=hidden_NH.device)
        total_N, mean_N = (torch.empty(count, dtype=exact, device=hidden_NH.device) for _ in range(2))
        top_NK = torch.empty(count, top_k, dtype=exact, device=hidden_NH.device)
        top_ids_NK = torch.empty(count, top_k, dtype=torch.long, device=hidden_NH.device)
        for rows in _slices(count, tile[0]):
            total, mean = None, None
            best = best_ids = None
            for columns in _slices(vocabulary, tile[1]):
                logits = _logits(hidden_NH, weight_VH, inverse_N1, rows, columns, exact)
                _pick(logits, ids_NK[rows], columns.start, at_NK[rows])
                if top_k:
                    best, best_ids = _merge_top(logits, columns.start, best, best_ids, top_k)
                tile_total, tile_mean = _log_sum_exp_and_mean(logits)
                if total is None or mean is None:
                    total, mean = tile_total, tile_mean
                else:
                    joint = torch.logaddexp(total, tile_total)
                    mean = mean * (total - joint).exp() + tile_mean * (tile_total - joint).exp()
                    total = joint
            assert total is not None
            assert mean is not None
            total_N[rows], mean_N[rows] = total, mean
            if best is not None and best_ids is not None:
                top_NK[rows], top_ids_NK[rows] = best - total[:, None], best_ids
        entropy_N = total_N - mean_N
        ctx.save_for_backward(hidden_NH, weight_VH, ids_NK, inverse_N1, total_N, entropy_N)
        ctx.tile = tile
        ctx.mark_non_differentiable(top_ids_NK, top_NK)
        ctx.set_materialize_grads(False)  # so that an entropy that is only logged costs nothing here
        return at_NK.sub_(total_N[:, None]), entropy_N, top_ids_NK, top_NK

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        at_grad_NK, entropy_grad_N = grads[:2]
        if at_grad_NK is None and entropy_grad_N is None:
            return (None,) * 6
        hidden_NH, weight_VH, ids_NK, inverse_N1, total_N, entropy_N = ctx.saved_tensors
        exact = total_N.dtype
        hidden_grad_NH = torch.empty_like(hidden_NH)
        # Sums over rows of tiles are not rounded to bfloat16 on the way.
        weight_grad_VH: Tensor | None = None
        if ctx.needs_input_grad[1]:  # under adapters the head does not learn
            weight_grad_VH = torch.empty_like(weight_VH, dtype=exact if len(hidden_NH) > ctx.tile[0] else None)
            if not len(hidden_NH):
                weight_grad_VH.zero_()
        for rows in _slices(len(hidden_NH), ctx.tile[0]):
            hidden_grad = torch.zeros(hidden_NH[rows].shape, dtype=exact, device=hidden_NH.device)
            for columns in _slices(len(weight_VH), ctx.tile[1]):
                logits = _logits(hidden_NH, weight_VH, inverse_N1, rows, columns, exact)
                log_probs = logits.sub_(total_N[rows, None])
                factor: Tensor | float = 0.0
                if entropy_grad_N is not None:
                    factor = (log_probs + entropy_N[rows, None]).mul_(-entropy_grad_N[rows, None])
                if at_grad_NK is not None:
                    factor = factor - at_grad_NK[rows].sum(-1, keepdim=True)
                grad = log_probs.exp_().mul_(factor)
                if at_grad_NK is not None:
                    _add_at(grad, ids_NK[rows], columns.start, at_grad_NK[rows])
                if inverse_N1 is not None:
                    grad *= inverse_N1[rows]
                rounded = grad.to(weight_VH.dtype)
                hidden_grad += rounded @ weight_VH[columns]
                if weight_grad_VH is None:
                    continue
                product = rounded.T @ hidden_NH[rows]
                if rows.start == 0:
                    weight_grad_VH[columns] = product
                else:
                    weight_grad_VH[columns] += product
            hidden_grad_NH[rows] = hidden_grad
        weight_grad_VH = None if weight_grad_VH is None else weight_grad_VH.to(weight_VH.dtype)
        return hidden_grad_NH, weight_grad_VH, None, None, None, None


def _statistics_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _slices(length: int, size: int) -> Iterator[slice]:
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def _logits(
    hidden_NH: Tensor, weight_VH: Tensor, inverse_N1: Tensor | None, rows: slice, columns: slice, exact: torch.dtype
) -> Tensor:
    """A tile of logits, in a tensor of its own."""
    logits = (hidden_NH[rows] @ weight_VH[columns].T).to(exact)
    return logits if inverse_N1 is None else logits.mul_(inverse_N1[rows])


def _log_sum_exp_and_mean(logits: Tensor) -> tuple[Tensor, Tensor]:
    """log sum exp x, and the mean of x under softmax(x), of each row."""
    probs = torch.softmax(logits, dim=-1)
    # The largest logit has probability 1 / sum exp(x - max), so its surprise is what the maximum lacks.
    top, place = logits.max(dim=-1, keepdim=True)
    total = top - probs.gather(-1, place).log()
    return total[:, 0], torch.linalg.vecdot(probs, logits)


def _pick(logits: Tensor, ids: Tensor, start: int, into: Tensor) -> None:
    """Write the logits of those ids that this tile holds."""
    local = ids - start
    inside = (local >= 0) & (local < logits.shape[1])
    found = logits.gather(-1, local.clamp(0, logits.shape[1] - 1))
    into.copy_(torch.where(inside, found, into))


def _add_at(grad: Tensor, ids: Tensor, start: int, values: Tensor) -> None:
    """Add the values to those ids that this tile holds."""
    local = ids - start
    inside = (local >= 0) & (local < grad.shape[1])
    grad.scatter_add_(-1, local.clamp(0, grad.shape[1] - 1), torch.where(inside, values, 0.0))


def _merge_top(
    logits: Tensor, start: int, best: Tensor | None, best_ids: Tensor | None, top_k: int
) -> tuple[Tensor, Tensor]:
    """The `top_k` largest of a tile and of what came before it (fewer while fewer were seen), largest first."""
    values, ids = logits.topk(min(top_k, logits.shape[1]), dim=-1)
    ids = ids + start
    if best is None or best_ids is None:
        return values, ids
    both, both_ids = torch.cat([best, values], dim=-1), torch.cat([best_ids, ids], dim=-1)
    values, places = both.topk(min(top_k, both.shape[1]), dim=-1)
    return values, both_ids.gather(-1, places)
