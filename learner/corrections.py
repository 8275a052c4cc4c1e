"""What people wrote in an answer's place, as answers of their own beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from learner.samples import TrainingSample


def with_corrections(samples: Sequence[TrainingSample]) -> Sequence[TrainingSample]:
    """The samples, and after them one for each correction: the better one of the pair whose worse one is the turn's."""
    corrections = [
        replace(
            sample,
            response_ids=sample.correction_ids,
            response_logprobs=None,
            pair=(sample.pair[0], True),
            correction_ids=None,
            truncated=False,
        )
        for sample in samples
        if sample.correction_ids is not None and sample.pair is not None
    ]
    return [*samples, *corrections] if corrections else samples
