"""The model and the batch of the learner's benchmark, the same for every contender.

A batch is like a micro-batch of chat turns: samples whose prompts and responses differ in length.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from learner.samples import TrainingSample

_SEED = 0
_FIRST_ID = 100
"""Below lie special tokens of SmolLM2."""


@dataclass(frozen=True)
class Size:
    """`samples` with `tokens` of prompts and responses in all. `tokens_per_forward`: of the learner, and of a pass of
    the bare model; a pass of TRL has as many samples as that on average. `steps`: measured ones."""

    samples: int
    tokens: int
    tokens_per_forward: int
    steps: int


SIZES = {
    "tiny": Size(16, 16 * 12, 100, steps=1),
    "small": Size(16, 2_310, 2_310, steps=3),
    "long": Size(4, 4 * 2_310, 2_310, steps=1),
    "gpu": Size(64, 64 * 2_310, 8 * 2_310, steps=3),
}

QWEN3_0_6B: dict[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
}

TINY = QWEN3_0_6B | {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


def device() -> str:
    """Where the benchmark runs."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def make_model(model: Path | None, size: str) -> Any:
    """The model of `model` in bfloat16; without one, an untrained Qwen3 of 0.6B, or a tiny one for the size "tiny"."""
    from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

    if model is not None:
        loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16, local_files_only=True)
        return loaded.to(device()).eval()
    torch.manual_seed(_SEED)
    config = Qwen3Config(**(TINY if size == "tiny" else QWEN3_0_6B))
    build: Any = Qwen3ForCausalLM
    with torch.device(device()):
        return build(config).to(torch.bfloat16).eval()


def make_samples(size: Size, vocabulary: int) -> list[TrainingSample]:
    """`size.samples` samples of random ids with exactly `size.tokens` tokens in all; prompts take a third, and the
    longest sample has about one and a half times the mean length."""
    random = np.random.default_rng(_SEED)
    mean = size.tokens / size.samples
    shares = np.linspace(0.5, 1.5, size.samples)
    random.shuffle(shares)
    totals = np.floor(shares * mean).astype(int)
    totals[np.argmin(totals)] += size.tokens - totals.sum()
    samples = []
    for number, total in enumerate(totals.tolist()):
        prompt = max(1, int(total * random.uniform(0.2, 0.45)))
        ids = random.integers(_FIRST_ID, vocabulary, total).astype(np.int32)
        samples.append(
            TrainingSample(
                sample_id=f"s{number}",
                prompt_ids=ids[:prompt],
                response_ids=ids[prompt:],
                response_logprobs=np.full(total - prompt, -np.log(vocabulary), np.float32),
                reward=1.0 if number % 2 else -1.0,
            )
        )
    return samples
