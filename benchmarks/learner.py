"""The learner's speed and memory, in one run on the same model and batch: our whole step, TRL's trainer's step, and as
the limit the bare model's forward, backward and optimizer on packed tokens.

On a CPU the model is SmolLM2-135M; on a GPU an untrained Qwen3 of 0.6B, for which the MFU is told as well.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.learner_batch import SIZES, device
from benchmarks.learner_contender import Measured
from benchmarks.results import Result
from hindstream.settings import Settings, child_environment
from hindstream.stack import model

_ROUNDS = ("limit", "ours", "trl", "full_logits", "ours", "limit")
"""The two that are close to each other are measured twice and in turns, so that a slow minute of the machine does not
decide between them."""

_UNEVEN = 1.2
"""Where one contender got that many times the processor time of another, their ratio says more about the machine's
other work than about them."""

_PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12}
"""Dense bfloat16, from the makers' data sheets."""


def run(console: Console, size: str | None = None) -> list[Result]:
    """Every contender in a process of its own; the fastest step of each counts, since noise only ever slows.

    `size`: of `SIZES`; by default "gpu" on a GPU, else "small".
    """
    on_gpu = device() == "cuda"
    size = size or ("gpu" if on_gpu else "small")
    path = None if on_gpu or size == "tiny" else _smollm2(console)
    best: dict[str, Measured] = {}
    shares: list[float] = []
    with tempfile.TemporaryDirectory(prefix="hindstream-bench-") as directory:
        for name in _ROUNDS:
            one = _measure(name, size, Path(directory) / "measured.json", path)
            console.print(
                f"{name}: {one.tokens / min(one.seconds):,.0f} tokens/s, peak {one.peak_mb:,.0f} MB", highlight=False
            )
            shares.append(one.cpu_share)
            other = best.get(name, one)
            best[name] = replace(one, seconds=one.seconds + other.seconds, peak_mb=min(one.peak_mb, other.peak_mb))
    if not on_gpu and max(shares) > _UNEVEN * min(shares):
        console.print(
            f"[bold]These ratios are no measurement:[/] the machine was busy, and contenders got between "
            f"{min(shares):.0%} and {max(shares):.0%} of its cores. Run it again when nothing else runs."
        )
    ours = best["ours"]
    console.print(f"{SIZES[size].samples} samples of {ours.tokens} tokens, {ours.targets} of them in responses")
    return _results(best)


def _results(best: dict[str, Measured]) -> list[Result]:
    ours = best["ours"]
    speed = {name: one.tokens / min(one.seconds) for name, one in best.items()}
    results = [
        Result(name="ratio_limit", value=speed["ours"] / speed["limit"], unit="of the bare model's tokens/s"),
        Result(name="ratio_trl", value=speed["ours"] / speed["trl"], unit="of TRL's tokens/s"),
        Result(
            name="tokens_per_s",
            value=speed["ours"],
            unit="tokens/s",
            baseline=speed["limit"],
            baseline_name="bare model, packed",
        ),
        Result(name="trl_tokens_per_s", value=speed["trl"], unit="tokens/s"),
        Result(
            name="peak_memory_mb",
            value=ours.peak_mb,
            unit="MB",
            baseline=best["trl"].peak_mb,
            baseline_name="TRL",
        ),
        Result(
            name="peak_memory_ratio_full_logits",
            value=ours.peak_mb / best["full_logits"].peak_mb,
            unit="of the step with whole logits",
        ),
    ]
    peak = next((flops for name, flops in _PEAK_FLOPS.items() if name in ours.device.replace("-", " ").split()), None)
    if peak is not None:
        results.append(Result(name="mfu", value=ours.flops / min(ours.seconds) / peak, unit=f"of {ours.device}"))
    return results


def _measure(name: str, size: str, file: Path, path: Path | None) -> Measured:
    command = [sys.executable, "-m", "benchmarks.learner_contender", name, size, str(file)]
    environment = child_environment(OMP_WAIT_POLICY="PASSIVE", HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1")
    ran = subprocess.run(
        command + ([] if path is None else [str(path)]), env=environment, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise RuntimeError(f"{name} of the learner's benchmark ended with {ran.returncode}:\n{ran.stderr[-4000:]}")
    return Measured(**json.loads(file.read_text()))


def _smollm2(console: Console) -> Path:
    settings = Settings()
    return model.ensure(settings.model, settings.cache, lambda line: console.print(line, highlight=False))
