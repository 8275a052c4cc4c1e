"""A Llama so small that a training step takes milliseconds, and samples for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from learner.collate import plan_forwards
from learner.logprobs import response_log_probs
from learner.samples import TrainingSample

VOCABULARY = 61


def tiny_model(seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """Two layers, 61 tokens, tied embeddings as in SmolLM2."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.2,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).to(dtype).eval()


def make_sample(
    seed: int,
    *,
    prompt: int = 4,
    response: int = 5,
    reward: float | None = 1.0,
    teacher: bool = False,
    behaviour: float = -3.0,
    truncated: bool = False,
) -> TrainingSample:
    """Random ids; behaviour log-probs around `behaviour`."""
    generator = np.random.default_rng(seed)

    def log_probs() -> Any:
        return (behaviour - generator.random(response)).astype(np.float32)

    return TrainingSample(
        sample_id=f"s{seed}",
        prompt_ids=generator.integers(1, VOCABULARY, prompt).astype(np.int32),
        response_ids=generator.integers(1, VOCABULARY, response).astype(np.int32),
        response_logprobs=log_probs(),
        reward=reward,
        teacher_logprobs=log_probs() if teacher else None,
        truncated=truncated,
    )


def mixed_samples() -> list[TrainingSample]:
    """Rewarded, hinted, both, neutral; all of different lengths."""
    return [
        make_sample(1, prompt=3, response=7, reward=1.0),
        make_sample(2, prompt=6, response=2, reward=-1.0, teacher=True),
        make_sample(3, prompt=2, response=11, reward=None, teacher=True),
        make_sample(4, prompt=9, response=4, reward=0.0),
        make_sample(5, prompt=5, response=1, reward=-1.0),
    ]


def on_policy(model: Any, sample: TrainingSample) -> TrainingSample:
    """The sample with the model's own log-probs as behaviour."""
    (forward,) = plan_forwards([sample], 1)
    with torch.no_grad():
        own = response_log_probs(model, forward)[0].float().numpy()
    return replace(sample, response_logprobs=own)


def weights(model: Any) -> dict[str, torch.Tensor]:
    """A copy of every parameter."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
