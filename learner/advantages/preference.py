"""`pairs`: of two answers to the same messages the better rises and the worse falls, the more the less the policy tells
them apart (Rafailov et al., arXiv 2305.18290, the gradient below eq. 7).

A_t = +w of the chosen answer's tokens and -w of the rejected one's, with w = 2 beta sigmoid(-margin) and
margin = beta (g_chosen - g_rejected), g = sum over an answer of l_own - l_ref. Weighed by -A_t l_new, summed over each
answer and averaged over answers (twice as many as pairs, hence the 2), its gradient is that of the mean of
-log sigmoid(margin) over pairs. l_own is measured before the step, so it holds for one step a micro-batch.

Ignores: how much better the chosen one is, and lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from learner.losses.dpo import PairLoss, dpo, response_gain

Pair = tuple[str, bool]
"""A pair's name, and whether this answer is the better one."""


@dataclass(frozen=True, eq=False)
class Preferred:
    """`advantage` float32 [N], 0 while the log-probs are not known; `mask` bool [N]: tokens of answers whose pair is
    whole; `pairs`: loss and margin of each, None while they are not known."""

    advantage: Tensor
    mask: Tensor
    pairs: PairLoss | None


def preference_advantage(
    pairs: Sequence[Pair | None],
    mask_N: Tensor,
    owners_N: Tensor,
    own_N: Tensor | None,
    reference_N: Tensor | None,
    *,
    beta: float,
) -> Preferred:
    """The advantage over `mask_N` bool [N]; `pairs` has one entry an answer, `owners_N` int64 [N] names the answer of
    each token. An answer without a token in `mask_N`, or whose other has none, is in no pair.

    Raises:
        ValueError: `beta` is not positive.
    """
    tokens_B = torch.bincount(owners_N[mask_N], minlength=len(pairs))
    found: dict[str, dict[bool, int]] = {}
    for place, pair in enumerate(pairs):
        if pair is not None and tokens_B[place]:
            found.setdefault(pair[0], {})[pair[1]] = place
    whole = [(both[True], both[False]) for both in found.values() if len(both) == 2]
    chosen_P = torch.tensor([chosen for chosen, _ in whole], dtype=torch.long)
    rejected_P = torch.tensor([rejected for _, rejected in whole], dtype=torch.long)
    paired_B = torch.zeros(len(pairs), dtype=torch.bool)
    paired_B[chosen_P] = True
    paired_B[rejected_P] = True
    mask_N = mask_N & paired_B[owners_N]
    if own_N is None or reference_N is None:
        return Preferred(torch.zeros(len(mask_N)), mask_N, None)
    gain_B = response_gain(own_N, reference_N, mask_N, owners_N, len(pairs))
    compared = dpo(gain_B[chosen_P], gain_B[rejected_P], beta=beta)
    weight_P = 2 * beta * torch.sigmoid(-compared.margin)
    weight_B = torch.zeros(len(pairs), dtype=weight_P.dtype)
    weight_B[chosen_P] = weight_P
    weight_B[rejected_P] = -weight_P
    return Preferred(torch.where(mask_N, weight_B[owners_N], 0.0), mask_N, compared)
