"""A micro-batch's objective: which tokens carry which component, with which weight.

`component`: each component (rl, opd) is a loss of its own, masked by its own samples and normalised by its own tokens;
the loss is w_rl L_rl + w_opd L_opd. A batch with few hints does not dilute them. Any advantage of the reward goes with
any kind of distillation.

`batch`: one loss of the summed advantage A = w_opd A_opd [hint] + w_rl A_rl [scored], normalised by all kept tokens of
the micro-batch (OpenClaw-RL's `combine`). The more tokens carry a component, the more it weighs.

Built once before any pass, which tells what can carry a gradient at all, and again when the models that the recipe asks
were measured. Everything in it is of the whole micro-batch, so the sum over forward passes, on however many machines,
is the same however they are cut.

Shapes: N response tokens of the micro-batch, samples in order; K vocabulary entries a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from learner.advantages.overlong import shaped_reward
from learner.aggregation import token_weights
from learner.distilling import Taught, distil
from learner.estimators import ESTIMATORS, Credit, Credited
from learner.importance import mismatch_weights
from learner.losses.dpo import PairLoss
from learner.losses.kl import kl_estimate
from learner.measured import Measured
from learner.samples import TrainingSample
from learner.step_options import StepOptions

__all__ = ["Component", "Objective", "StepOptions", "build_objective"]


@dataclass(frozen=True, eq=False)
class Component:
    """One loss: advantages float32 [N], mask bool [N], token weights float32 [N] that hold w and the normaliser.
    `taught`: what a loss over several entries a token reads; None for the policy's surrogate."""

    name: str
    advantage: Tensor
    mask: Tensor
    weight: Tensor
    taught: Taught | None = None


@dataclass(frozen=True, eq=False)
class Objective:
    """Everything of a micro-batch that is known before the pass with gradient.

    `behaviour` float32 [N], NaN where no log-probs of a sampler are known; `owners` int64 [N]: each token's sample;
    `lengths`: response tokens of each sample; `kept` bool [N] where any component has a token, with `kept_weight`
    float32 [N] for terms that every kept token shares (KL, entropy); `signals`: advantage and mask of each signal
    alone, for the log; `measured`: the models' log-probs; `correction` float32 [N]: weight of each token for the gap
    between engine and trainer, None where it is not known yet or nothing weighs. `rejected` bool [N]: masked because of
    that gap. `returns` float32 [N] and `returns_weight`: what a critic learns. `pairs`: loss and margin of the pairs
    that are compared, before the step.
    """

    behaviour: Tensor
    owners: Tensor
    lengths: list[int]
    kept: Tensor
    kept_weight: Tensor
    components: list[Component]
    signals: dict[str, tuple[Tensor, Tensor]]
    measured: Measured
    correction: Tensor | None
    rejected: Tensor
    returns: Tensor | None = None
    returns_weight: Tensor | None = None
    pairs: PairLoss | None = None

    def carried(self) -> list[bool]:
        """For each sample whether any token of it carries a gradient."""
        return [bool(part.any()) for part in torch.split(self.kept, self.lengths)]


def build_objective(
    samples: Sequence[TrainingSample],
    options: StepOptions,
    measured: Measured | None = None,
    use: Sequence[bool] | None = None,
) -> Objective:
    """The objective of `samples`, in their order.

    A sample whose `use` is False, or a truncated one where `train_truncated` is False (unless a person corrected it),
    is masked: it counts in no baseline and no normaliser. Without `measured` the advantages that need a model are not
    those that are trained, but the masks hold everything that can be said without one.

    Raises:
        InvalidSample: a sample must not be trained.
    """
    measured = measured or Measured()
    counts = []
    for place, sample in enumerate(samples):
        sample.check()
        whole = options.train_truncated or not sample.truncated or sample.correction_ids is not None
        counts.append((use is None or use[place]) and whole)
    lengths = [len(sample.response_ids) for sample in samples]
    tokens = torch.tensor(lengths)
    behaviour_N = torch.cat([_behaviour(sample) for sample in samples])
    owners_N = torch.arange(len(samples)).repeat_interleave(tokens)
    usable_N = torch.tensor(counts).repeat_interleave(tokens)

    alive_N, correction_N = usable_N, None
    if measured.proximal is not None and options.measures:
        correction_N, alive_N = mismatch_weights(measured.proximal, behaviour_N, usable_N, owners_N, options.measures)
    credited = _credited(samples, counts, alive_N, lengths, behaviour_N, options, measured)
    opd = distil(samples, behaviour_N, alive_N, options, measured)
    none_N = torch.zeros_like(usable_N)
    signals = {
        "rl": (credited.advantage, credited.mask if options.w_rl else none_N),
        "opd": (opd.advantage, opd.mask if options.w_opd else none_N),
    }
    kept_N = signals["rl"][1] | signals["opd"][1]

    def weights(mask_N: Tensor) -> Tensor:
        return token_weights(mask_N, owners_N, options.aggregation, constant=options.aggregation_constant)

    return Objective(
        behaviour=behaviour_N,
        owners=owners_N,
        lengths=lengths,
        kept=kept_N,
        kept_weight=weights(kept_N),
        components=_components(signals, kept_N, opd, weights, options),
        signals=signals,
        measured=measured,
        correction=correction_N,
        rejected=usable_N & ~alive_N,
        returns=credited.returns,
        returns_weight=None if credited.returns is None else weights(signals["rl"][1]),
        pairs=credited.pairs if options.w_rl else None,
    )


def _behaviour(sample: TrainingSample) -> Tensor:
    if sample.response_logprobs is None:
        return torch.full((len(sample.response_ids),), torch.nan)
    return torch.from_numpy(sample.response_logprobs.copy())


def _components(
    signals: dict[str, tuple[Tensor, Tensor]],
    kept_N: Tensor,
    opd: Taught,
    weights: Callable[[Tensor], Tensor],
    options: StepOptions,
) -> list[Component]:
    factors = {"rl": options.w_rl, "opd": options.w_opd}
    if options.normaliser == "batch":
        if not kept_N.any():
            return []
        summed = sum(
            (torch.where(mask, advantage, 0.0) * factors[name] for name, (advantage, mask) in signals.items()),
            torch.zeros(len(kept_N)),
        )
        return [Component("combined", summed, kept_N, weights(kept_N))]
    over_entries = opd if options.distillation.of_entries else None
    return [
        Component(name, advantage, mask, weights(mask) * factors[name], over_entries if name == "opd" else None)
        for name, (advantage, mask) in signals.items()
        if bool(mask.any())
    ]


def _credited(
    samples: Sequence[TrainingSample],
    counts: Sequence[bool],
    alive_N: Tensor,
    lengths: list[int],
    behaviour_N: Tensor,
    options: StepOptions,
    measured: Measured,
) -> Credited:
    kl_N = None
    if options.kl_in == "reward" and options.kl_coefficient and measured.reference is not None:
        kl_N = kl_estimate(behaviour_N, measured.reference, alive_N, options.kl_estimator)
    rewards = [_reward(sample, options) if count else None for sample, count in zip(samples, counts, strict=True)]
    return ESTIMATORS[options.advantage.kind](
        Credit(
            rewards=rewards,
            groups=[sample.group_id for sample in samples],
            earlier=[sample.earlier_rewards for sample in samples],
            mask=alive_N,
            lengths=lengths,
            options=options.advantage,
            kl=kl_N,
            kl_coefficient=options.kl_coefficient,
            values=measured.values,
            own=measured.proximal,
            reference=measured.reference,
            pairs=[sample.pair for sample in samples],
        )
    )


def _reward(sample: TrainingSample, options: StepOptions) -> float | None:
    spec = options.advantage
    if spec.overlong_limit is None:
        return sample.reward
    return shaped_reward(
        sample.reward,
        len(sample.response_ids),
        limit=spec.overlong_limit,
        buffer=spec.overlong_buffer,
        factor=spec.overlong_factor,
    )
