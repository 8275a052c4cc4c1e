"""What a policy would have earned on recorded sessions that another one spoke: importance-weighted estimates.

A trajectory is a path through a session: its turns in order, each with the log-weight
w_j = sum over its response tokens of (log-prob by the candidate - log-prob as sampled), and a reward or none.
W_j = exp(w_1 + ... + w_j). The value is the expected mean reward of a trajectory's rewarded turns, in [-1, 1]: of each
trajectory i with m_i rewarded turns, turn j counts r_ij / m_i.

- sequence: sum_i W_i,last G_i / sum_i W_i,last with G_i the trajectory's mean reward (weighted importance sampling;
  Precup, Sutton & Singh 2000).
- per-decision: sum over j of [sum_i W_ij r_ij / m_i] / [sum_i W_ij], a trajectory that has ended keeping its last
  weight (weighted per-decision importance sampling, ibid.): a reward is weighed only by what was said up to it.

Both are consistent and biased in small samples. Their effective sample size is (sum W)^2 / sum W^2 (Kish 1965; for
per-decision the least over the steps that hold a reward), and where it is small a handful of trajectories decides all:
then no number is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST_EFFECTIVE = 30.0
"""Below about thirty effective trajectories neither the estimate nor a percentile of its bootstrap means much."""
RESAMPLES = 2000
_TAIL = 0.025


@dataclass(frozen=True)
class Trajectory:
    """`log_weights` float64 [J], nats; `rewards` float64 [J], NaN where a turn has none."""

    log_weights: NDArray[np.float64]
    rewards: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One estimate over `trajectories`. `value`, `low`, `high` (95 %) are None where `refused` says why."""

    method: str
    trajectories: int
    effective: float
    value: float | None
    low: float | None
    high: float | None
    refused: str | None


def estimates(
    trajectories: Sequence[Trajectory], *, least_effective: float = LEAST_EFFECTIVE, seed: int = 0
) -> list[Estimate]:
    """The recorded mean reward (every weight 1), the per-decision and the sequence estimate, in this order.

    Trajectories without a reward are left out: a missing reward is not 0. The bounds are percentiles of a bootstrap
    over trajectories, with `seed`.

    Raises:
        ValueError: no trajectory has a reward, or lengths differ, or a log-weight is not finite.
    """
    used = [_checked(one) for one in trajectories if np.isfinite(one.rewards).any()]
    if not used:
        raise ValueError("no trajectory has a reward, so there is nothing to estimate from")
    weights_IJ, gains_IJ = _padded(used)
    chance = np.random.default_rng(seed)
    picks_BI = chance.integers(0, len(used), (RESAMPLES, len(used)))
    made = []
    for method in ("recorded", "per_decision", "sequence"):
        w_IJ = np.zeros_like(weights_IJ) if method == "recorded" else weights_IJ
        columns = range(w_IJ.shape[1])
        if method == "sequence":
            w_IJ, g_IJ = w_IJ[:, -1:], gains_IJ.sum(axis=1, keepdims=True)
            columns = range(1)
        else:
            g_IJ = gains_IJ
        scaled_IJ = np.exp(w_IJ - w_IJ.max(axis=0))  # a common factor of a step's weights leaves the ratio as it is
        rewarded = [j for j in columns if np.any(g_IJ[:, j] != 0) or method == "sequence"]
        effective = min((_effective(scaled_IJ[:, j]) for j in rewarded), default=float(len(used)))
        made.append(_estimate(method, scaled_IJ, g_IJ, picks_BI, effective, least_effective))
    return made


def _estimate(
    method: str,
    weights_IJ: NDArray[np.float64],
    gains_IJ: NDArray[np.float64],
    picks_BI: NDArray[np.int64],
    effective: float,
    least: float,
) -> Estimate:
    count = len(weights_IJ)
    if effective < least:
        reason = (
            f"the effective sample is {effective:.1f} of {count} trajectories, below {least:g}: a few of them would "
            "decide the number"
        )
        return Estimate(
            method=method, trajectories=count, effective=effective, value=None, low=None, high=None, refused=reason
        )
    value = float((weights_IJ * gains_IJ).sum(axis=0) @ (1.0 / weights_IJ.sum(axis=0)))
    sums = np.zeros(len(picks_BI))
    for j in range(weights_IJ.shape[1]):  # step by step: [B, I] at once and no more
        w_BI = weights_IJ[:, j][picks_BI]
        sums += (w_BI * gains_IJ[:, j][picks_BI]).sum(axis=1) / np.maximum(w_BI.sum(axis=1), np.finfo(np.float64).tiny)
    low, high = np.quantile(sums, [_TAIL, 1 - _TAIL])
    return Estimate(
        method=method,
        trajectories=count,
        effective=effective,
        value=value,
        low=float(low),
        high=float(high),
        refused=None,
    )


def _padded(used: Sequence[Trajectory]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Cumulative log-weights [I, J], the last one kept after a trajectory's end, and r / m [I, J] with 0 where there is
    no reward."""
    longest = max(len(one.rewards) for one in used)
    weights_IJ = np.empty((len(used), longest))
    gains_IJ = np.zeros((len(used), longest))
    for i, one in enumerate(used):
        sums = np.cumsum(one.log_weights)
        weights_IJ[i, : len(sums)] = sums
        weights_IJ[i, len(sums) :] = sums[-1]
        there = np.isfinite(one.rewards)
        gains_IJ[i, : len(sums)][there] = one.rewards[there] / there.sum()
    return weights_IJ, gains_IJ


def _effective(weights_I: NDArray[np.float64]) -> float:
    return float(weights_I.sum() ** 2 / (weights_I**2).sum())


def _checked(one: Trajectory) -> Trajectory:
    if len(one.log_weights) != len(one.rewards):
        raise ValueError(f"{len(one.log_weights)} log-weights for {len(one.rewards)} rewards")
    if not np.isfinite(one.log_weights).all():
        raise ValueError("a log-weight is not finite: a token is impossible for one of the policies")
    return one
