"""A micro-batch's objective: which tokens carry which component, with which weight, before any forward pass.

`component`: each component (rl, opd) is a clipped surrogate of its own, masked by its own samples and normalised by its
own tokens; the loss is w_rl L_rl + w_opd L_opd. A batch with few hints does not dilute them.

`batch`: one clipped surrogate of the summed advantage A = w_opd (l_T - l_old)[hint] + w_rl r[scored], normalised by
all kept tokens of the micro-batch (OpenClaw-RL's `combine`). The more tokens carry a component, the more it weighs.

Shapes: N response tokens of the micro-batch, samples in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from learner.advantages.distillation import distillation_advantage
from learner.advantages.reward import reward_advantage
from learner.aggregation import Aggregation, token_weights
from learner.losses.kl import KlEstimator
from learner.samples import TrainingSample


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """What a step does; the fields of a recipe's loss and optimizer, see `schemas.recipes`."""

    w_rl: float = 1.0
    w_opd: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None
    kl_coefficient: float = 0.0
    kl_estimator: KlEstimator = "k3"
    entropy_coefficient: float = 0.0
    tis_cap: float | None = 2.0
    aggregation: Aggregation = "token_mean"
    aggregation_constant: float | None = None
    normaliser: Literal["component", "batch"] = "component"
    train_truncated: bool = True
    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    steps: int = 1
    tokens_per_forward: int = 2048


@dataclass(frozen=True, eq=False)
class Component:
    """One clipped surrogate: advantages float32 [N], mask bool [N], token weights float32 [N] that hold w and the
    normaliser. `names` are the signals in it."""

    name: str
    advantage: Tensor
    mask: Tensor
    weight: Tensor


@dataclass(frozen=True, eq=False)
class Objective:
    """Everything of a micro-batch that is known before a forward pass.

    `behaviour` float32 [N]; `kept` bool [N] where any component has a token, with `kept_weight` float32 [N] for terms
    that every kept token shares (KL, entropy); `signals`: advantage and mask of each signal alone, for the log.
    """

    behaviour: Tensor
    kept: Tensor
    kept_weight: Tensor
    components: list[Component]
    signals: dict[str, tuple[Tensor, Tensor]]


def build_objective(samples: Sequence[TrainingSample], options: StepOptions) -> Objective:
    """The objective of `samples`, in their order. A truncated sample is masked where `train_truncated` is False, and
    then counts in no normaliser.

    Raises:
        InvalidSample: a sample must not be trained.
    """
    behaviours, owners = [], []
    signals: dict[str, tuple[list[Tensor], list[Tensor]]] = {"rl": ([], []), "opd": ([], [])}
    for place, sample in enumerate(samples):
        sample.check()
        behaviour = torch.from_numpy(sample.response_logprobs.copy())
        teacher = None if sample.teacher_logprobs is None else torch.from_numpy(sample.teacher_logprobs.copy())
        use = options.train_truncated or not sample.truncated
        for name, weight, (advantage, mask) in (
            ("rl", options.w_rl, reward_advantage(sample.reward, len(behaviour))),
            ("opd", options.w_opd, distillation_advantage(teacher, behaviour)),
        ):
            signals[name][0].append(advantage)
            signals[name][1].append(mask if use and weight != 0 else torch.zeros_like(mask))
        behaviours.append(behaviour)
        owners.append(torch.full((len(behaviour),), place))
    owners_N = torch.cat(owners)
    joined = {name: (torch.cat(advantages), torch.cat(masks)) for name, (advantages, masks) in signals.items()}
    kept_N = joined["rl"][1] | joined["opd"][1]

    def weights(mask_N: Tensor) -> Tensor:
        return token_weights(mask_N, owners_N, options.aggregation, constant=options.aggregation_constant)

    factors = {"rl": options.w_rl, "opd": options.w_opd}
    if options.normaliser == "component":
        components = [
            Component(name, advantage, mask, weights(mask) * factors[name])
            for name, (advantage, mask) in joined.items()
            if bool(mask.any())
        ]
    else:
        summed = sum(
            (torch.where(mask, advantage, 0.0) * factors[name] for name, (advantage, mask) in joined.items()),
            torch.zeros(len(owners_N)),
        )
        components = [Component("combined", summed, kept_N, weights(kept_N))] if bool(kept_N.any()) else []
    return Objective(torch.cat(behaviours), kept_N, weights(kept_N), components, joined)
