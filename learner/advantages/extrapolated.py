"""`g-opd`, `exopd`: distillation that can go beyond its teacher (G-OPD, Yang et al., 2026).

A_t = lambda (l_T - l_ref) - (l_old - l_ref). The teacher's gain over the reference is an implicit reward, lambda its
scale. lambda 1 is plain distillation, l_T - l_old; above 1 the student is sent on in the direction in which the
teacher left the reference; 0 sends it back to the reference.

Ignores: any other reward (it replaces it; mixing is the recipe's to do).
"""

from __future__ import annotations

import torch
from torch import Tensor


def extrapolated_advantage(
    teacher_T: Tensor | None, reference_T: Tensor | None, behaviour_T: Tensor, *, scale: float = 1.25
) -> tuple[Tensor, Tensor]:
    """Advantage [T] in the dtype of `behaviour_T`, and mask bool [T]: all False without a teacher.

    `scale` is lambda. A token for which one of the three has no finite log-prob is masked alone.

    Raises:
        ValueError: lengths differ, or there is no reference and `scale` is not 1: to ignore it would silently train
            another recipe.
    """
    if teacher_T is None:
        return torch.zeros_like(behaviour_T), torch.zeros_like(behaviour_T, dtype=torch.bool)
    if reference_T is None:
        if scale != 1:
            raise ValueError(
                f"a scale of {scale} extrapolates from a reference model, and there are no log-probs of it"
            )
        reference_T = torch.zeros_like(behaviour_T)
    for name, each in (("teacher", teacher_T), ("reference", reference_T)):
        if each.shape != behaviour_T.shape:
            raise ValueError(f"{len(each)} {name} log-probs for {len(behaviour_T)} response tokens")
    mask_T = torch.isfinite(teacher_T) & torch.isfinite(reference_T) & torch.isfinite(behaviour_T)
    teacher_T, reference_T, behaviour_T = (
        torch.where(mask_T, each, 0.0) for each in (teacher_T, reference_T, behaviour_T)
    )
    return scale * (teacher_T - reference_T) - (behaviour_T - reference_T), mask_T
