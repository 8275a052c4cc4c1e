"""Importance ratios, and what is done about a sampler that is not the policy in training.

Engine and trainer give the same token slightly different log-probs (kernels, precision), and the trainer may be some
versions ahead. With rho_t = exp(l_prox,t - l_old,t), the trainer's own log-prob before the step over the engine's, a
token's share of the gradient is weighed, masked, or both:

- truncation, min(rho, cap) (Ionides 2008; token level as TIS in Yao et al. 2025, "Your efficient RL framework secretly
  brings you off-policy RL training"; sequence level with the product of a sequence's ratios);
- a mask that also keeps the ratio as weight (IcePop, Ling team 2025), or rejection that only masks, by a KL estimate
  or by the ratio itself; at the level of tokens, of whole sequences, or of their geometric mean;
- a veto: one token that the trainer holds for nearly impossible takes its whole sequence out.

All of it is computed once before the step and carries no gradient. Sums over a sequence run in float64.

Shapes: N tokens, S sequences; owners_N int64 [N] names the sequence of each token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""Nats. exp of a log-ratio overflows float32 at 88, and one such token would make the whole micro-batch's gradient NaN
(0 x inf behind the clip). Beyond e^20 a ratio says only that it is far outside any clip range, so it is held there and
gives no gradient. Peers differ: some bound at 20 as here, some not at all."""

LEAST_LOG_PROB = -9999.0
"""Nats. What stands for a log-prob of -inf, as in vLLM's answers: a token that a model holds for impossible stays
comparable, where -inf minus -inf would be NaN. It gives no gradient."""

MismatchKind = Literal["truncate", "mask", "reject", "veto"]
Level = Literal["token", "sequence", "geometric"]


@dataclass(frozen=True, kw_only=True)
class MismatchSpec:
    """One measure against the gap between sampler and trainer.

    - truncate: weight min(rho, high); nothing is masked. `low` is not used.
    - mask: outside [low, high] masked, inside weighed by rho.
    - reject: outside the bounds masked, no weight. By `estimator`: k1 bounds rho itself to [low, high]; k2 and k3 bound
      the estimate of KL(sampler || trainer) in nats from above by `high`.
    - veto: a sequence with any rho below `low` is masked whole, whatever `level`.

    `level` says whose rho: each token's, the product over a sequence, or its geometric mean (for k2 and k3: the
    estimate of a token, the sum over a sequence, or its mean). `low` None is 1 / high for mask and k1.

    Raises:
        ValueError: bounds that cannot hold, named with what they must be.
    """

    kind: MismatchKind
    level: Level = "token"
    low: float | None = None
    high: float | None = None
    estimator: Literal["k1", "k2", "k3"] = "k1"

    def __post_init__(self) -> None:
        if self.kind not in ("truncate", "mask", "reject", "veto"):
            raise ValueError(f"no mismatch measure {self.kind!r}; there are truncate, mask, reject, veto")
        if self.level not in ("token", "sequence", "geometric"):
            raise ValueError(f"no mismatch level {self.level!r}; there are token, sequence, geometric")
        if self.estimator not in ("k1", "k2", "k3"):
            raise ValueError(f"no KL estimator {self.estimator!r}; there are k1, k2, k3")
        if self.kind == "veto":
            if self.low is None or self.low <= 0:
                raise ValueError(f"a veto needs a positive low, not {self.low}")
            return
        if self.high is None or self.high <= 0:
            raise ValueError(f"{self.kind} needs a positive high, not {self.high}")
        if self.kind == "truncate" and self.low is not None:
            raise ValueError(f"truncate only bounds from above; low must be None, not {self.low}")
        if self.bounds_ratio and not 0 <= self.lowest <= self.high:
            raise ValueError(f"{self.kind} keeps ratios within [low, high], and [{self.lowest}, {self.high}] is none")

    @property
    def bounds_ratio(self) -> bool:
        """Whether both bounds are of rho (and not of a KL estimate)."""
        return self.kind == "mask" or (self.kind == "reject" and self.estimator == "k1")

    @property
    def lowest(self) -> float:
        """The lower bound of rho."""
        if self.low is not None:
            return self.low
        return 0.0 if self.high is None else 1 / self.high


def log_prob_gap(numerator_N: Tensor, denominator_N: Tensor, mask_N: Tensor) -> Tensor:
    """Difference of log-probs [N] in nats, finite for any log-prob but NaN; 0 where `mask_N` is False.

    Masked before the difference: what stands at a masked place (NaN, a fill value) reaches neither the value nor the
    gradient.
    """
    return known(numerator_N, mask_N) - known(denominator_N, mask_N)


def known(log_probs_N: Tensor, mask_N: Tensor) -> Tensor:
    """Log-probs [N] with 0 where `mask_N` is False and at least LEAST_LOG_PROB elsewhere."""
    return torch.where(mask_N, log_probs_N, 0.0).clamp_min(LEAST_LOG_PROB)


def log_ratio(numerator_N: Tensor, denominator_N: Tensor, mask_N: Tensor) -> Tensor:
    """`log_prob_gap` [N] held within +-LOG_RATIO_BOUND, so that its exp is finite; no gradient beyond."""
    return log_prob_gap(numerator_N, denominator_N, mask_N).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def sequence_sum(values_N: Tensor, owners_N: Tensor) -> Tensor:
    """Sum over each sequence, float64 [S], S the largest owner + 1."""
    count = int(owners_N.max()) + 1 if len(owners_N) else 0
    total_S = torch.zeros(count, dtype=torch.float64, device=values_N.device)
    return total_S.index_add(0, owners_N, values_N.double())


def sequence_mean(values_N: Tensor, mask_N: Tensor, owners_N: Tensor) -> Tensor:
    """Mean over each sequence's kept tokens, float64 [S]; 0 for a sequence without any."""
    total_S = sequence_sum(torch.where(mask_N, values_N, 0.0), owners_N)
    return total_S / sequence_sum(mask_N, owners_N).clamp_min(1.0)


def mismatch_weights(
    proximal_N: Tensor,
    behaviour_N: Tensor,
    mask_N: Tensor,
    owners_N: Tensor,
    spec: MismatchSpec | Sequence[MismatchSpec],
) -> tuple[Tensor, Tensor]:
    """Weight of each token [N] in the dtype of `proximal_N`, and mask bool [N] that is nowhere wider than `mask_N`.

    Several measures each look at all of `mask_N`; their weights are multiplied and their masks intersected. The weight
    is 1 where the returned mask is False. A masked token neither trains nor counts, so normalisers come after this
    (peers leave it in the denominator, which weakens the rest of the batch by as much).
    """
    kept_N = mask_N.clone()
    weight_N = torch.ones_like(proximal_N)
    gap_N = log_prob_gap(proximal_N, behaviour_N, mask_N).detach()
    for one in [spec] if isinstance(spec, MismatchSpec) else spec:
        factor_N, within_N = _measure(gap_N, mask_N, owners_N, one)
        weight_N = weight_N * factor_N.to(weight_N.dtype)
        kept_N = kept_N & within_N
    return torch.where(kept_N, weight_N, 1.0), kept_N


def off_policy_mask(
    newer_N: Tensor, older_N: Tensor, advantage_N: Tensor, mask_N: Tensor, owners_N: Tensor, *, limit: float
) -> Tensor:
    """`mask_N` without the sequences that are both bad and far off-policy, bool [N].

    A sequence is dropped where its mean advantage is negative and the mean of older - newer, an estimate of
    KL(older || newer) per token in nats, exceeds `limit` (DeepSeek-V3.2, arXiv 2512.02556, eq. 9). What is good, or
    was pushed up since, stays. Looks at kept tokens only.
    """
    drift_S = sequence_mean(log_prob_gap(older_N, newer_N, mask_N).detach(), mask_N, owners_N)
    advantage_S = sequence_mean(advantage_N, mask_N, owners_N)
    dropped_S = (advantage_S < 0) & (drift_S > limit)
    return mask_N & ~dropped_S[owners_N]


def _measure(gap_N: Tensor, mask_N: Tensor, owners_N: Tensor, spec: MismatchSpec) -> tuple[Tensor, Tensor]:
    """Factor [N] and where the measure keeps a token, bool [N]."""
    none_N = torch.ones_like(gap_N)
    if spec.kind == "veto":
        assert spec.low is not None
        vetoed_S = sequence_sum(mask_N & (_exp(gap_N) < spec.low), owners_N) > 0
        return none_N, ~vetoed_S[owners_N]
    assert spec.high is not None
    if spec.kind == "reject" and not spec.bounds_ratio:
        estimate_N = gap_N.square() / 2 if spec.estimator == "k2" else _k3(gap_N)
        return none_N, _at_level(estimate_N, mask_N, owners_N, spec.level) <= spec.high
    ratio_N = _exp(_at_level(gap_N, mask_N, owners_N, spec.level))
    if spec.kind == "truncate":
        return ratio_N.clamp(max=spec.high), torch.ones_like(mask_N)
    within_N = (ratio_N >= spec.lowest) & (ratio_N <= spec.high)
    return (ratio_N if spec.kind == "mask" else none_N), within_N


def _at_level(values_N: Tensor, mask_N: Tensor, owners_N: Tensor, level: Level) -> Tensor:
    """Of values that are 0 where `mask_N` is False."""
    if level == "token":
        return values_N
    if level == "sequence":
        return sequence_sum(values_N, owners_N)[owners_N]
    return sequence_mean(values_N, mask_N, owners_N)[owners_N]


def _exp(gap_N: Tensor) -> Tensor:
    return gap_N.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def _k3(gap_N: Tensor) -> Tensor:
    return torch.expm1(gap_N) - gap_N  # inf where it overflows: beyond any bound, as it should be
