"""The distillation component of a micro-batch: what the teacher's scores credit each token, or each of its likeliest
entries, with.

Shapes: N response tokens of the micro-batch, samples in order; K vocabulary entries a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from learner.advantages.distillation import distillation_advantage
from learner.advantages.extrapolated import extrapolated_advantage
from learner.advantages.topk import topk_advantage
from learner.measured import Entries, Measured
from learner.samples import TrainingSample
from learner.step_options import StepOptions


@dataclass(frozen=True, eq=False)
class Taught:
    """`advantage` float32 [N]: of the sampled token; for distillation over entries it is only logged. `mask` bool [N].
    `entries` with `entry_advantage` and `entry_mask` [N, K] where the loss looks at entries."""

    advantage: Tensor
    mask: Tensor
    entries: Entries | None = None
    entry_advantage: Tensor | None = None
    entry_mask: Tensor | None = None


def distil(
    samples: Sequence[TrainingSample], behaviour_N: Tensor, mask_N: Tensor, options: StepOptions, measured: Measured
) -> Taught:
    """The component over the tokens of `mask_N`. Before its models were measured the advantage is that of plain
    distillation or 0, and only the mask counts.

    Raises:
        ValueError: scores and response differ in length.
    """
    spec = options.distillation
    mask_N = mask_N & _may_be_taught(samples, options)
    teacher_N = _served(samples) if measured.teacher is None else measured.teacher
    plain_N, plain_mask_N = distillation_advantage(teacher_N, behaviour_N)
    if spec.of_entries:
        # Beside a behaviour that nobody knows a gain is not known, and is no gain of 0.
        known_N = torch.where(behaviour_N.isnan(), torch.nan, 0.0)
        logged_N = torch.where(plain_mask_N & mask_N, plain_N, known_N)
        if measured.entries is None:
            return Taught(logged_N, mask_N)
        return _over_entries(logged_N, mask_N, measured.entries, options)
    if options.needs_teacher and measured.teacher is None:
        return Taught(torch.zeros_like(behaviour_N), mask_N)
    if spec.kind == "extrapolated" and (measured.reference is not None or spec.scale == 1):
        plain_N, plain_mask_N = extrapolated_advantage(teacher_N, measured.reference, behaviour_N, scale=spec.scale)
    mask_N = mask_N & plain_mask_N
    return Taught(torch.where(mask_N, plain_N, 0.0), mask_N)


def _served(samples: Sequence[TrainingSample]) -> Tensor:
    """The server's log-probs of the sampled tokens, float32 [N]; NaN for samples that no teacher scored."""
    return torch.cat(
        [
            torch.full((len(sample.response_ids),), torch.nan)
            if sample.teacher_logprobs is None
            else torch.from_numpy(sample.teacher_logprobs.copy())
            for sample in samples
        ]
    )


def _may_be_taught(samples: Sequence[TrainingSample], options: StepOptions) -> Tensor:
    """Tokens of samples that have what the recipe's teacher needs, bool [N]."""
    known = []
    for sample in samples:
        if options.needs_teacher:
            there = sample.hinted_prompt_ids is not None
        elif options.distillation.of_entries:
            there = sample.teacher_topk_ids is not None and sample.teacher_topk_logprobs is not None
        else:
            there = sample.teacher_logprobs is not None
        known.append(torch.full((len(sample.response_ids),), there))
    return torch.cat(known)


def _over_entries(logged_N: Tensor, mask_N: Tensor, entries: Entries, options: StepOptions) -> Taught:
    if options.distillation.kind == "topk":
        assert entries.own is not None
        advantage_NK, entry_mask_NK = topk_advantage(entries.teacher, entries.own, clip=options.distillation.bound)
    else:
        entry_mask_NK = ~torch.isnan(entries.teacher)
        advantage_NK = torch.zeros_like(entries.teacher)
    entry_mask_NK = entry_mask_NK & mask_N[:, None]
    return Taught(logged_N, mask_N & entry_mask_NK.any(-1), entries, advantage_NK, entry_mask_NK)
