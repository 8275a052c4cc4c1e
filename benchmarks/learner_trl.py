"""TRL's trainer on the benchmark's batch: its own step with its optimizer; completions are given, not generated.

Its settings are the fastest that were found for it: bfloat16 weights without float32 masters, no recomputation of
layers, no second pass for old log-probs, no reference.
"""

from __future__ import annotations

import tempfile
import time
from typing import Any

import numpy as np
import torch
from datasets import Dataset  # type: ignore[import-untyped]
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.learner_batch import Size, device
from learner.samples import TrainingSample


class _Clock(TrainerCallback):
    """Seconds of each step, from its first pass to the end of its update."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._begin = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._begin = self._now()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(self._now() - self._begin)

    @staticmethod
    def _now() -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()


class _FixedBatch(GRPOTrainer):
    """GRPO whose completions are given."""

    batch: dict[str, Any]

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        return dict(self.batch)


def trl_seconds(model: Any, size: Size, samples: list[TrainingSample]) -> list[float]:
    """Seconds of each measured step, after one that is not measured."""
    per_pass = max(1, min(len(samples), round(size.tokens_per_forward * len(samples) / size.tokens)))
    clock = _Clock()
    with tempfile.TemporaryDirectory(prefix="hindstream-bench-trl-") as directory:
        arguments = GRPOConfig(
            output_dir=directory,
            per_device_train_batch_size=per_pass,
            gradient_accumulation_steps=len(samples) // per_pass,
            num_generations=2,
            max_completion_length=max(len(s.response_ids) for s in samples),
            learning_rate=1e-6,
            lr_scheduler_type="constant",
            max_steps=size.steps + 1,
            gradient_checkpointing=False,
            bf16=False,  # the weights are bfloat16 already; autocast would only add casts
            beta=0.0,
            optim="adamw_torch_fused",
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            use_cpu=device() == "cpu",
            disable_tqdm=True,
        )
        trainer = _FixedBatch(
            model=model,
            reward_funcs=_no_reward,
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": ["a"] * (len(samples) * (size.steps + 2))}),
            processing_class=_tokenizer(),
            callbacks=[clock],
        )
        trainer.batch = _padded(samples)
        trainer.train()
    return clock.seconds[1:]


def _no_reward(completions: list[Any], **_: Any) -> list[float | None]:
    """Never called: advantages are given."""
    return [None] * len(completions)


def _tokenizer() -> Any:
    """A tokenizer that TRL can hold; nothing is tokenised."""
    words: Any = Tokenizer(WordLevel({"a": 0, "<pad>": 1, "<end>": 2}, unk_token="a"))
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>")


def _padded(samples: list[TrainingSample]) -> dict[str, Any]:
    """TRL's layout: prompts padded on the left, completions on the right."""
    prompts, completions = [s.prompt_ids for s in samples], [s.response_ids for s in samples]
    rewards = torch.tensor([s.reward for s in samples])
    batch = {
        "prompt_ids": _rows(prompts, left=True),
        "prompt_mask": _rows([np.ones_like(ids) for ids in prompts], left=True),
        "completion_ids": _rows(completions, left=False),
        "completion_mask": _rows([np.ones_like(ids) for ids in completions], left=False),
        "advantages": rewards,
        "num_items_in_batch": torch.tensor(sum(len(ids) for ids in completions)),
    }
    return {name: value.to(device()) for name, value in batch.items()}


def _rows(arrays: list[Any], *, left: bool) -> torch.Tensor:
    width = max(len(array) for array in arrays)
    rows = torch.zeros(len(arrays), width, dtype=torch.long)
    for row, array in zip(rows, arrays, strict=True):
        place = slice(width - len(array), width) if left else slice(0, len(array))
        row[place] = torch.from_numpy(array.astype(np.int64))
    return rows
