"""`opd-topk`: distillation over the student's k likeliest entries S (OpenClaw-RL, arXiv 2603.10165).

A_v = clip(l_T,v - l_old,v, -C, C) softmax_S(l_old)_v for each v in S. Where `opd` learns from the one token that was
sampled, this learns from all that were likely, each with its share: a lower variance for k scores a token. The clip
keeps one entry that the teacher holds for impossible from outweighing all others. The loss that goes with it is
`learner.losses.topk_surrogate`.

Ignores: entries outside S.
"""

from __future__ import annotations

import torch
from torch import Tensor


def topk_advantage(teacher_NK: Tensor | None, behaviour_NK: Tensor, *, clip: float = 1.0) -> tuple[Tensor, Tensor]:
    """Advantage [N, K] in the dtype of `behaviour_NK`, and mask bool [N, K]: all False without a teacher.

    Both are log-probs of the full softmax at the student's own top k. Where the teacher's score is not known (NaN) the
    entry is masked alone, and the others keep their shares; -inf is a score, and gives -C.

    Raises:
        ValueError: shapes differ, or `clip` is not positive.
    """
    if clip <= 0:
        raise ValueError(f"the clip C of a top-k advantage must be positive, not {clip}")
    if teacher_NK is None:
        return torch.zeros_like(behaviour_NK), torch.zeros_like(behaviour_NK, dtype=torch.bool)
    if teacher_NK.shape != behaviour_NK.shape:
        raise ValueError(f"teacher scores {tuple(teacher_NK.shape)} for student entries {tuple(behaviour_NK.shape)}")
    likely_NK = torch.isfinite(behaviour_NK)
    mask_NK = likely_NK & ~torch.isnan(teacher_NK)
    share_NK = torch.where(likely_NK, behaviour_NK.exp(), 0.0)
    share_NK = share_NK / share_NK.sum(-1, keepdim=True)
    gain_NK = (teacher_NK - behaviour_NK).clamp(-clip, clip)
    return torch.where(mask_NK, gain_NK * share_NK, 0.0), mask_NK


def scores_at(ids_NJ: Tensor, scores_NJ: Tensor, wanted_NK: Tensor) -> Tensor:
    """`scores_NJ` of the entries `wanted_NK` [N, K]; NaN where an entry is not among `ids_NJ`.

    A score that is not there stays unknown and is never made up.
    """
    same_NKJ = wanted_NK[:, :, None] == ids_NJ[:, None, :]
    found_NK = torch.where(same_NKJ, scores_NJ[:, None, :], 0.0).sum(-1)
    return torch.where(same_NKJ.any(-1), found_NK, torch.nan)
