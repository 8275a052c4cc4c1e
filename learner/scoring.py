"""Recorded responses under a weight version's policy: log-probs of the tokens that were said."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from learner.collate import plan_forwards
from learner.logprobs import response_log_probs
from learner.policy import load_model
from learner.samples import TrainingSample
from learner.stored import Version, assemble


@contextmanager
def loaded(version: Version, base: Version | None, *, dtype: str, device: str) -> Iterator[Any]:
    """The model of a version, whatever kind it is stored as; `base` is what a delta or adapter names.

    Raises:
        LearnerStopped: its files are gone or hold no model.
        DeltaFault: a delta does not give what its manifest names.
    """
    if base is None:
        yield load_model(version.path, dtype, device)
    elif version.kind == "adapter":
        model = load_model(base.path, dtype, device)
        model.load_adapter(str(version.path))
        yield model
    else:
        with tempfile.TemporaryDirectory(prefix="hindstream-") as directory:
            yield load_model(assemble(version, base, Path(directory) / version.path.name).path, dtype, device)


@torch.no_grad()
def score(
    model: Any,
    samples: Sequence[TrainingSample],
    tokens_per_forward: int,
    observe: Callable[[int], None] = lambda _: None,
) -> list[NDArray[np.float32]]:
    """Log-prob of each response token, float32 [R] for each sample. `observe` is told after each pass how many response
    tokens are done."""
    lengths = [len(sample.response_ids) for sample in samples]
    values_N = np.zeros(sum(lengths), dtype=np.float32)
    done = 0
    for forward in plan_forwards(samples, tokens_per_forward):
        values_N[forward.flat.numpy()] = response_log_probs(model, forward)[0].float().cpu().numpy()
        done += len(forward.flat)
        observe(done)
    return np.split(values_N, list(accumulate(lengths))[:-1])
