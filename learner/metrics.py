"""What every step logs; `learner.watching.definitions` says what each name means. NaN and infinity never reach a log:
what cannot be said is absent (None)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from learner.losses.kl import kl_estimate

if TYPE_CHECKING:
    from learner.objective import Objective

Metrics = dict[str, float | None]

_SPREAD = {"p05": 0.05, "p50": 0.50, "p95": 0.95}
_PERCENTILES = {"p01": 0.01, "p50": 0.50, "p99": 0.99}


def finite(value: float) -> float | None:
    """`value`, or None where it is NaN or infinite."""
    return float(value) if math.isfinite(value) else None


def masked(values_N: Tensor, mask_N: Tensor) -> Tensor:
    """The values where the mask is True, float64."""
    return values_N[mask_N].double()


def _mean(values: Tensor) -> float | None:
    return finite(float(values.mean())) if values.numel() else None


def objective_metrics(objective: Objective) -> Metrics:
    """Tokens and advantages of each signal."""
    metrics: Metrics = {"tokens": float(objective.kept.sum())}
    for name, (advantage_N, mask_N) in objective.signals.items():
        values = masked(advantage_N, mask_N)
        metrics[f"{name}_tokens"] = float(values.numel())
        values = values[~values.isnan()]  # not known, where a loss over entries reads none
        metrics[f"{name}_advantage_mean"] = _mean(values)
        metrics[f"{name}_advantage_std"] = finite(float(values.std(unbiased=False))) if values.numel() else None
        for share, percentile in _SPREAD.items():
            metrics[f"{name}_advantage_{share}"] = (
                finite(float(np.quantile(values.numpy(), percentile))) if values.numel() else None
            )
    if objective.pairs is not None:
        margin = objective.pairs.margin.double()
        metrics["pairs"] = float(margin.numel())
        metrics["pair_loss"] = _mean(objective.pairs.loss.double())
        metrics["pair_margin"] = _mean(margin)
        metrics["pair_accuracy"] = _mean((margin > 0).double())
    return metrics


def log_prob_gap(own_N: Tensor, behaviour_N: Tensor, kept_N: Tensor) -> float | None:
    """Mean |trainer - engine| over the kept tokens, nats; None where there is none or it is not finite."""
    return _mean(masked(own_N - behaviour_N, kept_N).abs())


def log_prob_metrics(
    new_N: Tensor, behaviour_N: Tensor, entropy_N: Tensor, kept_N: Tensor, reference_N: Tensor | None = None
) -> Metrics:
    """Ratio percentiles, engine-trainer gap, KL(behaviour || policy), KL(policy || reference) and entropy over the kept
    tokens, in nats.

    The tokens are samples of the behaviour, so it is the first argument of its KL: k1 = l_old - l_new.
    The gap compares the trainer's log-probs before the step with the engine's as sampled, so it holds both the
    numerical mismatch and the distance that the weights have moved since (see staleness). What is told of the behaviour
    is told of the tokens whose behaviour is known.
    """
    if not kept_N.any():
        return {}
    known_N = kept_N & ~behaviour_N.isnan()
    metrics: Metrics = _beside_the_behaviour(new_N, behaviour_N, known_N) if known_N.any() else {}
    if reference_N is not None:
        metrics["reference_kl"] = _mean(masked(kl_estimate(new_N, reference_N, kept_N, "k3"), kept_N))
    metrics["entropy"] = _mean(masked(entropy_N, kept_N))
    return metrics


def _beside_the_behaviour(new_N: Tensor, behaviour_N: Tensor, kept_N: Tensor) -> Metrics:
    gap = masked(new_N - behaviour_N, kept_N)
    ratio = gap.exp()
    with np.errstate(invalid="ignore"):  # beside a ratio of infinity a percentile may be none
        percentiles = np.quantile(ratio.numpy(), list(_PERCENTILES.values()))
    metrics: Metrics = {
        f"ratio_{name}": finite(float(value)) for name, value in zip(_PERCENTILES, percentiles, strict=True)
    }
    metrics["ratio_max"] = finite(float(ratio.max()))
    metrics["logprob_gap_mean"] = log_prob_gap(new_N, behaviour_N, kept_N)
    metrics["logprob_gap_max"] = finite(float(gap.abs().max()))
    for estimator in ("k1", "k3"):
        metrics[f"kl_{estimator}"] = _mean(masked(kl_estimate(behaviour_N, new_N, kept_N, estimator), kept_N))
    return metrics
