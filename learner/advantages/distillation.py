"""`opd`: on-policy distillation (Thinking Machines, 2025; OpenClaw-RL, arXiv 2603.10165).

A_t = l_T,t - l_old,t: how much more the teacher, who saw the hint, likes the token that the student sampled. It is the
negative of a one-sample estimate of the reverse KL at that token.
"""

from __future__ import annotations

import torch
from torch import Tensor


def distillation_advantage(teacher_T: Tensor | None, behaviour_T: Tensor) -> tuple[Tensor, Tensor]:
    """Advantage float32 [T] and mask bool [T].

    The mask is all False without a teacher. A token that the teacher gives no finite log-prob (-inf: it holds the
    token for impossible) is masked alone, since no finite step could express it.

    Raises:
        ValueError: teacher and behaviour differ in length; neither is cut to fit.
    """
    if teacher_T is None:
        return torch.zeros_like(behaviour_T), torch.zeros_like(behaviour_T, dtype=torch.bool)
    if teacher_T.shape != behaviour_T.shape:
        raise ValueError(f"{len(teacher_T)} teacher log-probs for {len(behaviour_T)} response tokens")
    mask_T = torch.isfinite(teacher_T) & torch.isfinite(behaviour_T)
    advantage_T = torch.where(mask_T, teacher_T, 0.0) - torch.where(mask_T, behaviour_T, 0.0)
    return advantage_T, mask_T
