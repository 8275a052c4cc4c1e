"""What makes two runs over the same samples end in the same bits: threads, ranks, device, algorithms.

On a CPU a sum is split among the threads, and anywhere among the ranks, so its rounding depends on their number. On a
GPU some operations add in the order in which blocks happen to finish. `--deterministic` refuses those.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from learner.config import LearnerConfig
from learner.ranks import world_size

log = logging.getLogger(__name__)


def settle(config: LearnerConfig) -> None:
    """Set torch's threads and algorithms for this process."""
    if config.threads:
        torch.set_num_threads(config.threads)
    torch.use_deterministic_algorithms(config.deterministic)
    if config.deterministic:
        log.info("deterministic: %d threads, and no operation whose result may differ", torch.get_num_threads())


def made_on(config: LearnerConfig) -> dict[str, Any]:
    """What a version's bits depend on beside its samples and recipe, for its manifest."""
    return {
        "device": config.device if config.device == "cpu" else torch.cuda.get_device_name(config.device),
        "dtype": config.dtype,
        "threads": torch.get_num_threads(),
        "ranks": world_size(),
        "tokens_per_forward": config.tokens_per_forward,
        "torch": str(torch.__version__),
        "deterministic": config.deterministic,
    }


def differences(manifest: Mapping[str, Any], config: LearnerConfig) -> list[str]:
    """What a version was made with and this process has otherwise, in words. The threads of a version made on a CPU are
    taken from its manifest (`threads_of`), so they never differ."""
    there, here = manifest.get("made_on"), made_on(config)
    if there is None:
        return ["its manifest does not say what it was made with"]
    there = {"ranks": 1, **there}
    names = ("device", "dtype", "ranks", "tokens_per_forward", "torch")
    return [f"{name} {there.get(name)} then, {here[name]} now" for name in names if there.get(name) != here[name]]


@contextmanager
def threads_of(manifest: Mapping[str, Any]) -> Iterator[None]:
    """As many threads as made a version, so that making it again on a CPU gives the same bits."""
    before = torch.get_num_threads()
    made = manifest.get("made_on", {}).get("threads", before)
    if made != before:
        torch.set_num_threads(made)
    try:
        yield
    finally:
        if made != before:
            torch.set_num_threads(before)
