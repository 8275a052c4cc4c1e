"""Why a sample carried no gradient: a reason of the contract, and the same in words with numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from learner.objective import Objective
from learner.samples import TrainingSample
from learner.step_options import StepOptions

Silence = tuple[str, str]
"""A drop reason of the contract, and the same in words."""


def why_silent(samples: Sequence[TrainingSample], objective: Objective, options: StepOptions) -> list[Silence | None]:
    """For each sample the first reason that holds; None where a token of it carries a gradient.

    - `no_signal`: cut off, and the recipe does not train such answers; or neither reward nor teacher.
    - `off_policy`: every token was masked because engine and trainer are too far apart on it.
    - `uninformative`: it has a reward, and the reward says nothing beside those it is compared with.
    """
    rejected = [int(part.sum()) for part in torch.split(objective.rejected, objective.lengths)]
    found: list[Silence | None] = []
    for sample, carried, out, length in zip(samples, objective.carried(), rejected, objective.lengths, strict=True):
        if carried:
            found.append(None)
        elif sample.truncated and not options.train_truncated:
            found.append(("no_signal", "cut off at the length limit"))
        elif out == length:
            found.append(("off_policy", f"all of its {length} tokens are outside the recipe's mismatch bounds"))
        elif _has_reward(sample, options):
            found.append(("uninformative", _compared(sample, options)))
        else:
            found.append(("no_signal", "no token of it carries a gradient"))
    return found


def _has_reward(sample: TrainingSample, options: StepOptions) -> bool:
    reward = sample.reward
    if options.compares_pairs:
        return sample.pair is not None
    if not options.w_rl or reward is None or not math.isfinite(reward):
        return False
    if options.advantage.kind == "liked":
        return False
    return options.advantage.kind != "reward" or reward != 0


def _compared(sample: TrainingSample, options: StepOptions) -> str:
    kind = options.advantage.kind
    if kind == "pairs":
        return "the other answer of its pair is not trained"
    if kind in ("group", "leave_one_out"):
        group = "of no group" if sample.group_id is None else f"of group {sample.group_id}"
        return f"reward {sample.reward:g} {group}: alone in it, or no candidate was rewarded otherwise"
    if kind == "batch":
        return f"reward {sample.reward:g}, as every other of the micro-batch"
    return f"reward {sample.reward:g}, which is its baseline"
