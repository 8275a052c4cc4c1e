"""Divergence of two distributions over k chosen vocabulary entries and one bin for all the rest.

With student s and teacher t over the k + 1 bins (SDFT, arXiv 2601.19897; SDPO, arXiv 2601.20802):

- alpha 0: KL(t || s), forward, covers every mode of the teacher;
- alpha 1: KL(s || t), reverse, as in OpenClaw-RL (arXiv 2603.10165) and on-policy distillation;
- between: the generalised Jensen-Shannon divergence (1 - alpha) KL(s || m) + alpha KL(t || m) with the mixture
  m = (1 - alpha) s + alpha t (Agarwal et al., arXiv 2306.13649, eq. 1).

The tail bin makes both whole distributions, so the divergence is never negative and is a lower bound of the full one.
Without it the k entries are renormalised; peers that do neither can get negative "divergences". With k the whole
vocabulary and no tail it is the exact divergence.

Ignores: differences within the tail, and which entries were chosen (the caller says; student's or teacher's top k).
"""

from __future__ import annotations

import torch
from torch import Tensor

from learner.importance import LEAST_LOG_PROB

_LEAST_TAIL = 1e-7
"""Probability. The tail of entries that sum to 1 or, by rounding, to more; its logarithm must exist."""


def topk_divergence(
    student_NK: Tensor, teacher_NK: Tensor, mask_NK: Tensor, *, alpha: float, tail: bool = True
) -> Tensor:
    """Divergence per token [N] in nats, in the dtype of `student_NK`; 0 where no entry of a token is kept.

    `student_NK` and `teacher_NK` are log-probs of the full softmax at the same entries. An entry whose `mask_NK` is
    False (the teacher gave no score for it), or that either holds for impossible (-inf, whose divergence would be
    infinite), is in the tail of both. No gradient reaches the teacher.

    Raises:
        ValueError: `alpha` outside [0, 1].
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha is the teacher's share in the mixture, from 0 to 1, not {alpha}")
    teacher_NK = teacher_NK.detach()
    kept_NK = mask_NK & (teacher_NK > LEAST_LOG_PROB) & ~(student_NK <= LEAST_LOG_PROB)
    student, teacher = _bins(student_NK, kept_NK, tail), _bins(teacher_NK, kept_NK, tail)
    if alpha == 0:
        divergence_N = _kl(teacher, student)
    elif alpha == 1:
        divergence_N = _kl(student, teacher)
    else:
        weights = torch.tensor([1 - alpha, alpha], dtype=student.dtype, device=student.device).log()
        mixture = torch.logaddexp(student + weights[0], teacher + weights[1])
        divergence_N = (1 - alpha) * _kl(student, mixture) + alpha * _kl(teacher, mixture)
    return torch.where(kept_NK.any(-1), divergence_N, 0.0)


def _bins(log_probs_NK: Tensor, kept_NK: Tensor, tail: bool) -> Tensor:
    """Log-probs over the bins, [N, K + 1], or renormalised, [N, K]. What is not kept has no probability."""
    entries_NK = torch.where(kept_NK, log_probs_NK, LEAST_LOG_PROB)
    total_N1 = torch.logsumexp(entries_NK, -1, keepdim=True)
    if not tail:
        return entries_NK - total_N1
    return torch.cat([entries_NK, torch.log(-torch.expm1(total_N1.clamp(max=-_LEAST_TAIL)))], -1)


def _kl(left: Tensor, right: Tensor) -> Tensor:
    return (left.exp() * (left - right)).sum(-1)
