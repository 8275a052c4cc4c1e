"""Attention of packed rows: each sample sees itself only, and no mask of [T, T] is ever made.

A dense block mask costs T x T memory and makes the kernels compute what it throws away; it was measured slower than
padding. Here each segment goes through a causal kernel of its own: one kernel over all segments (flash attention's
`varlen` form) where there is one for the device and dtype, a loop of `scaled_dot_product_attention` elsewhere.

Shapes: T tokens of all segments in one row, Q query heads, G key and value heads (Q is a multiple), D head size.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "hindstream_packed"
"""The name under which transformers finds this attention."""

_LAYER_TYPES = {"full_attention", "sliding_attention"}
"""Kinds of layers whose tokens meet only in attention. A recurrent layer would carry one sample's state into the next,
and no attention function can stop that."""

_UNKNOWN = ("softcap", "s_aux", "position_bias")
"""What some architectures add to the scores; leaving it out would be wrong without a sign of it."""


@dataclass(frozen=True, eq=False)
class Packing:
    """The segments of one packed row. `lengths`: tokens of each. `bounds` int32 [segments + 1]: where each begins, and
    the end, on the device of the model."""

    lengths: tuple[int, ...]
    bounds: Tensor

    @classmethod
    def of(cls, lengths: tuple[int, ...], device: torch.device) -> Packing:
        """The packing of segments of these lengths."""
        bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
        return cls(lengths, bounds)

    def arguments(self) -> dict[str, Any]:
        """What a decoder of transformers takes so that its layers attend within segments.

        The empty mask keeps it from making a dense one; a layer that ignored the packing would fail on it, rather than
        mix samples in silence.
        """
        empty = torch.empty(1, 1, 0, 0, dtype=torch.bool, device=self.bounds.device)
        return {"attention_mask": empty, "packing": self}


def use_packed_attention(model: Any) -> None:
    """Make `model`, of transformers, attend within segments where it is given a `Packing`; it goes on as under "sdpa"
    where it is not. Free to call again.

    Raises:
        ValueError: the architecture has layers that carry state from token to token without attention, or attention
            that cannot be replaced.
    """
    config = model.config.get_text_config()
    if config._attn_implementation == NAME:
        return
    strange = set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES
    if not strange:
        model.set_attn_implementation(NAME)
    if strange or config._attn_implementation != NAME:
        what = f"layers of type {', '.join(sorted(strange))}" if strange else "attention that cannot be replaced"
        raise ValueError(f"{type(model).__name__} has {what}: its samples cannot be packed into one row")


def packed_attention(
    module: torch.nn.Module,
    query_1QTD: Tensor,
    key_1GTD: Tensor,
    value_1GTD: Tensor,
    attention_mask: Tensor | None,
    packing: Packing | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: gives [1, T, Q, D] and no weights. Without `packing` it is "sdpa".

    `dropout` is ignored: log-probs under dropout are those of no policy.

    Raises:
        ValueError: the layer adds something to its scores that is not computed here.
    """
    if packing is None:
        attended: tuple[Tensor, None] = sdpa_attention_forward(
            module, query_1QTD, key_1GTD, value_1GTD, attention_mask, scaling=scaling, **more
        )
        return attended
    unknown = [name for name in _UNKNOWN if more.get(name) is not None]
    if unknown:
        raise ValueError(f"{type(module).__name__} uses {', '.join(unknown)}, which packed attention does not compute")
    kernel = _varlen_kernel() if _takes_varlen(query_1QTD) else None
    if kernel is None:
        return _loop(query_1QTD, key_1GTD, value_1GTD, packing.lengths, scaling, sliding_window), None
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query_1QTD, key_1GTD, value_1GTD))
    return kernel(query, key, value, packing, scaling, sliding_window)[None], None


def _loop(
    query_1QTD: Tensor,
    key_1GTD: Tensor,
    value_1GTD: Tensor,
    lengths: tuple[int, ...],
    scaling: float | None,
    window: int | None,
) -> Tensor:
    attended = []
    # split and not slices: the gradient of a slice is a row of zeros with one segment filled in, for each segment.
    segments = (torch.split(tensor, list(lengths), dim=2) for tensor in (query_1QTD, key_1GTD, value_1GTD))
    for query, key, value in zip(*segments, strict=True):
        band = None if window is None or query.shape[2] <= window else _band(query.shape[2], window, query.device)
        attended.append(
            scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask=band,
                is_causal=band is None,
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            ).transpose(1, 2)
        )
    return torch.cat(attended, dim=1)


def _band(length: int, window: int, device: torch.device) -> Tensor:
    """bool [L, L]: a token sees itself and the window - 1 before it."""
    places = torch.arange(length, device=device)
    distance = places[:, None] - places
    return (distance >= 0) & (distance < window)


_Kernel = Callable[[Tensor, Tensor, Tensor, Packing, float | None, int | None], Tensor]


def _takes_varlen(query: Tensor) -> bool:
    return query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) and query.shape[-1] <= 256


@cache
def _varlen_kernel() -> _Kernel | None:
    """Flash attention over [T, heads, D], from its own package or from torch; None where neither has it."""
    if importlib.util.find_spec("flash_attn") is not None:
        return _flash_attn
    if importlib.util.find_spec("torch.nn.attention.varlen") is not None:
        from torch.nn.attention import varlen

        # torch 2.10 had it without grouped heads and without a scale.
        if {"enable_gqa", "scale", "window_size"} <= inspect.signature(varlen.varlen_attn).parameters.keys():
            return _torch_varlen
    return None


def _window(window: int | None) -> tuple[int, int]:
    return (-1 if window is None else window - 1, 0)


def _flash_attn(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, scaling: float | None, window: int | None
) -> Tensor:
    from flash_attn import flash_attn_varlen_func  # type: ignore[import-not-found]

    bounds, longest = packing.bounds, max(packing.lengths)
    attended: Tensor = flash_attn_varlen_func(
        query,
        key,
        value,
        bounds,
        bounds,
        longest,
        longest,
        softmax_scale=scaling,
        causal=True,
        window_size=_window(window),
    )
    return attended


def _torch_varlen(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, scaling: float | None, window: int | None
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    bounds, longest = packing.bounds, max(packing.lengths)
    attended = varlen_attn(
        query,
        key,
        value,
        bounds,
        bounds,
        longest,
        longest,
        scale=scaling,
        window_size=_window(window),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(attended, Tensor)
    return attended


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
