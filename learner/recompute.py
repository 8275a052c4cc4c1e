"""Activation checkpointing: a layer's inner results are thrown away after the forward pass and computed again in the
backward pass. A third more computation, and memory for one hidden state a layer and token instead of dozens.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch.utils.checkpoint import checkpoint


def recompute_layers(model: Any) -> None:
    """Checkpoint each layer of a decoder of transformers, `model.model.layers`, in place; free to call again.

    transformers' own switch needs a model in training mode, where dropout would make log-probs that nobody sampled
    with. The learner has no dropout, so no state of a random generator has to be kept.
    """
    for layer in model.model.layers:
        if isinstance(layer.forward, partial):
            continue
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
