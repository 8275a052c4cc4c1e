"""One contender of the learner's benchmark, in a process of its own so that its peak memory is its own.

`python -m benchmarks.learner_contender NAME SIZE FILE [MODEL]` takes a warm-up step and some measured ones on the
batch, and writes their seconds and the peak memory to FILE as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.learner_batch import SIZES, Size, device, make_model, make_samples
from learner import logprobs, step
from learner.collate import plan_forwards
from learner.logprobs import Scores, response_hidden
from learner.samples import TrainingSample
from learner.step import PolicyTrainer
from learner.step_options import StepOptions

LR = 1e-6

Step = Callable[[], None]
Contender = Callable[[Any, Size, list[TrainingSample]], Step]


@dataclass(frozen=True)
class Measured:
    """`seconds` of each measured step. `cpu_share`: processor time over wall time and threads, of the whole process;
    low where others had the cores. `peak_mb`: on a GPU of its memory, else of the process with its libraries.
    `parameters` of the model, `tokens` of a step, of these `targets` response tokens; `flops` of a step by the usual
    count. `device`: torch's name of it."""

    seconds: list[float]
    cpu_share: float
    peak_mb: float
    parameters: int
    tokens: int
    targets: int
    flops: float
    device: str


def ours(model: Any, size: Size, samples: list[TrainingSample]) -> Step:
    """The learner's whole step as the service takes it: objective, passes, metrics, gradient norm and update of the
    float32 master weights."""
    options = StepOptions(lr=LR, w_opd=0.0, tis_cap=2.0, tokens_per_forward=size.tokens_per_forward)
    trainer = PolicyTrainer(model, options)

    def take() -> None:
        result = trainer.train(samples)
        assert result.skipped_reason is None

    return take


def full_logits(model: Any, size: Size, samples: list[TrainingSample]) -> Step:
    """The learner's step with whole logits instead of tiles: what the head costs in memory where nothing is done."""

    def whole(model: Any, forward: Any, **_: Any) -> Scores:
        logits = model.lm_head(response_hidden(model, forward)).float()
        log_probs = torch.log_softmax(logits, dim=-1)
        chosen = log_probs.gather(-1, forward.targets.to(logits.device)[:, None])[:, 0]
        with torch.no_grad():
            entropy = -(log_probs.exp() * log_probs).sum(-1)
        return Scores(chosen, entropy)

    step.response_scores = whole  # type: ignore[attr-defined]
    logprobs.response_scores = whole
    return ours(model, size, samples)


def limit(model: Any, size: Size, samples: list[TrainingSample]) -> Step:
    """The bare model: packed rows with the same attention, cross-entropy of whole logits at the response tokens, and
    torch's fused AdamW on the bfloat16 weights. No objective, no metrics, no gradient norm, no master weights."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    forwards = plan_forwards(samples, size.tokens_per_forward)
    targets = sum(len(forward.targets) for forward in forwards)

    def take() -> None:
        for forward in forwards:
            logits = model.lm_head(response_hidden(model, forward))
            wanted = forward.targets.to(logits.device)
            loss = torch.nn.functional.cross_entropy(logits.float(), wanted, reduction="sum") / targets
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return take


def flops_of(model: Any, samples: list[TrainingSample]) -> float:
    """Floating-point operations of a step: 6 a parameter and token, the head at response tokens only, and 6 a query-key
    pair, layer and hidden unit of the heads for causal attention. Recomputation counts as nothing."""
    config = model.config.get_text_config()
    parameters: int = sum(p.numel() for p in model.parameters())
    embedding: int = model.get_input_embeddings().weight.numel()
    head: int = model.lm_head.weight.numel()
    tied = model.lm_head.weight is model.get_input_embeddings().weight
    body = parameters - embedding - (0 if tied else head)
    lengths = [len(s.prompt_ids) + len(s.response_ids) for s in samples]
    targets = sum(len(s.response_ids) for s in samples)
    width = config.num_attention_heads * getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    attention: int = 6 * config.num_hidden_layers * width * sum(length * length for length in lengths)
    return 6.0 * (body * sum(lengths) + head * targets) + attention


def measure(take: Step, size: Size) -> list[float]:
    """Seconds of each measured step, after one that is not measured."""
    seconds = []
    for number in range(size.steps + 1):
        begin = time.perf_counter()
        take()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if number:
            seconds.append(time.perf_counter() - begin)
    return seconds


def peak_mb() -> float:
    """Peak memory so far, MB of 10^6 bytes."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def main(name: str, size_name: str, file: Path, model_path: Path | None) -> None:
    """Measure one contender."""
    size = SIZES[size_name]
    model = make_model(model_path, size_name)
    samples = make_samples(size, model.config.get_text_config().vocab_size)
    described = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens": size.tokens,
        "targets": sum(len(s.response_ids) for s in samples),
        "flops": flops_of(model, samples),
        "device": torch.cuda.get_device_name() if device() == "cuda" else "cpu",
    }
    wall, busy = time.perf_counter(), time.process_time()
    if name == "trl":
        from benchmarks.learner_trl import trl_seconds

        seconds = trl_seconds(model, size, samples)
    else:
        contenders: dict[str, Contender] = {"ours": ours, "full_logits": full_logits, "limit": limit}
        seconds = measure(contenders[name](model, size, samples), size)
    share = (time.process_time() - busy) / (time.perf_counter() - wall) / torch.get_num_threads()
    file.write_text(json.dumps(asdict(Measured(seconds=seconds, cpu_share=share, peak_mb=peak_mb(), **described))))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]) if len(sys.argv) > 4 else None)
