"""Recorded turns scored by weight versions, with progress on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from sqlalchemy import Connection

from hindstream.errors import UserError
from hindstream.settings import Settings
from learner.deltas import DeltaFault
from learner.errors import LearnerStopped
from learner.samples import TrainingSample
from learner.scoring import loaded, score
from learner.stored import base_version, stored_version


def score_by_version(
    connection: Connection, settings: Settings, policy: str, version: int, samples: Sequence[TrainingSample]
) -> list[NDArray[np.float32]]:
    """Log-prob of each response token under a version, float32 [R] for each sample.

    Raises:
        UserError: there is no such version, or its weight files are gone.
    """
    import torch

    if settings.learner.threads:
        torch.set_num_threads(settings.learner.threads)
    try:
        found = stored_version(connection, settings.weights_dir, policy, version)
        base = base_version(connection, settings.weights_dir, found)
        with (
            loaded(found, base, dtype=settings.learner.dtype, device=settings.learner.device) as model,
            _progress(f"{policy} version {version}", sum(len(one.response_ids) for one in samples)) as observe,
        ):
            return score(model, samples, settings.learner.tokens_per_forward, observe)
    except LookupError as err:
        raise UserError(f"{err.args[0]}; `hindstream weights list` shows those it has") from None
    except (LearnerStopped, DeltaFault) as err:
        raise UserError(
            f"{err}; `hindstream weights rebuild {version}` or `weights fetch` brings a version back"
        ) from None


@contextmanager
def _progress(words: str, total: int) -> Iterator[Callable[[int], None]]:
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(f"scoring by {words}", total=total)
        yield lambda done: progress.update(task, completed=done)
