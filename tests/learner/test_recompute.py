"""Activation checkpointing: the same bits, and less held between the passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import mixed_samples, tiny_model
from torch import Tensor

from learner.collate import plan_forwards
from learner.logprobs import response_log_probs
from learner.lora import LoraOptions, add_adapter
from learner.recompute import recompute_layers


def saved_elements_and_gradients(model: Any) -> tuple[int, list[Tensor]]:
    """Elements that autograd keeps for the backward pass, weights left out, and the trainable gradients."""
    own = {parameter.data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(value: Tensor) -> Tensor:
        if value.data_ptr() not in own:
            kept[value.data_ptr()] = value.numel()
        return value

    (forward,) = plan_forwards(mixed_samples(), 1000)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        loss = response_log_probs(model, forward)[0].sum()
    held = sum(kept.values())
    loss.backward()
    return held, [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("lora", [False, True])
def test_gradients_are_the_same_bits_and_less_is_held(lora: bool) -> None:
    models = [tiny_model() for _ in range(2)]
    if lora:
        for model in models:
            add_adapter(model, LoraOptions(rank=2))
    recompute_layers(models[1])
    recompute_layers(models[1])
    held, gradients = saved_elements_and_gradients(models[0])
    less, again = saved_elements_and_gradients(models[1])
    assert less < held / 3
    assert len(gradients) == len(again) > 4
    assert all(torch.equal(one, other) for one, other in zip(gradients, again, strict=True))
