"""The advantages that a recipe can name: from a micro-batch's rewards to a credit for each token.

Each is a function of `Credit`; its formula stands in `learner.advantages`. `schemas.recipes.advantages` lists the same
names, with what each needs of the data.

Shapes: B samples, N response tokens of the micro-batch, samples in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from learner.advantages.batch_baseline import batch_baseline_advantage
from learner.advantages.gae import gae
from learner.advantages.group import group_advantage, leave_one_out_advantage
from learner.advantages.mirror_descent import mirror_descent_advantage
from learner.advantages.preference import Pair, preference_advantage
from learner.advantages.returns import returns_to_go, token_rewards
from learner.advantages.session_baseline import session_baseline_advantage
from learner.advantages.whitening import whiten
from learner.losses.dpo import PairLoss
from learner.step_options import AdvantageOptions


@dataclass(frozen=True, kw_only=True, eq=False)
class Credit:
    """What an estimator reads.

    `rewards` [B]: None where there is none, or the sample does not count. `groups`, `earlier` [B]: see
    `TrainingSample`. `mask` bool [N]: tokens that may be trained. `lengths` [B]: response tokens of each sample.
    `kl` float32 [N]: KL to the reference, where it is taken from the reward by `kl_coefficient`; None while it is not
    known. `values` float32 [N]: the critic's; `own` and `reference` float32 [N]: log-probs of the policy before the
    step and of the base model; None while they are not known. `pairs` [B]: see `TrainingSample.pair`.
    """

    rewards: list[float | None]
    groups: list[str | None]
    earlier: list[tuple[float | None, ...]]
    mask: Tensor
    lengths: list[int]
    options: AdvantageOptions
    kl: Tensor | None = None
    kl_coefficient: float = 0.0
    values: Tensor | None = None
    own: Tensor | None = None
    reference: Tensor | None = None
    pairs: Sequence[Pair | None] = ()

    def penalised(self) -> list[float | None]:
        """Rewards less the KL summed over each sample's tokens."""
        if self.kl is None:
            return self.rewards
        sums = [float(part.double().sum()) for part in torch.split(torch.where(self.mask, self.kl, 0.0), self.lengths)]
        return [
            None if reward is None else reward - self.kl_coefficient * total
            for reward, total in zip(self.rewards, sums, strict=True)
        ]

    def spread(self, values_B: Tensor) -> Tensor:
        """Each sample's value at each of its tokens, [N]."""
        return values_B.repeat_interleave(torch.tensor(self.lengths))


@dataclass(frozen=True, eq=False)
class Credited:
    """`advantage` float32 [N] and `mask` bool [N]: False, and 0, where it says nothing. `returns` float32 [N]: what a
    critic learns, where there is one. `pairs`: loss and margin of pairs, where they are compared and known."""

    advantage: Tensor
    mask: Tensor
    returns: Tensor | None = None
    pairs: PairLoss | None = None


Estimator = Callable[[Credit], Credited]


def _of_reward(credit: Credit) -> Credited:
    # A neutral reward is no credit, with a KL penalty neither: told by the raw reward.
    informative = [reward is not None and math.isfinite(reward) and reward != 0 for reward in credit.rewards]
    return _by_sample(credit, torch.tensor([float(r or 0.0) for r in credit.penalised()]), torch.tensor(informative))


def _of_group(credit: Credit) -> Credited:
    std = credit.options.std
    return _by_sample(
        credit,
        group_advantage(credit.penalised(), credit.groups, std=std)[0],
        group_advantage(credit.rewards, credit.groups, std=std)[1],
    )


def _leave_one_out(credit: Credit) -> Credited:
    return _by_sample(
        credit,
        leave_one_out_advantage(credit.penalised(), credit.groups)[0],
        leave_one_out_advantage(credit.rewards, credit.groups)[1],
    )


def _of_batch(credit: Credit) -> Credited:
    kept = [int(part.sum()) for part in torch.split(credit.mask, credit.lengths)]
    if not credit.options.std:
        counted = [reward if tokens else None for reward, tokens in zip(credit.rewards, kept, strict=True)]
        penalised = [r if c is not None else None for r, c in zip(credit.penalised(), counted, strict=True)]
        return _by_sample(credit, mirror_descent_advantage(penalised)[0], mirror_descent_advantage(counted)[1])
    advantage_B, mask_B = batch_baseline_advantage(credit.rewards, kept)
    if credit.kl is None:
        return _by_sample(credit, advantage_B, mask_B)
    mask_N = credit.spread(mask_B) & credit.mask
    returns = []
    for reward, tokens, kl in zip(
        credit.rewards, torch.split(mask_N, credit.lengths), torch.split(credit.kl, credit.lengths), strict=True
    ):
        earned, _ = token_rewards(reward, tokens, kl_T=kl, kl_coefficient=credit.kl_coefficient)
        returns.append(returns_to_go(earned, tokens))
    return Credited(whiten(torch.cat(returns), mask_N)[0].float(), mask_N)


def _of_session(credit: Credit) -> Credited:
    return _by_sample(
        credit,
        session_baseline_advantage(credit.penalised(), credit.earlier)[0],
        session_baseline_advantage(credit.rewards, credit.earlier)[1],
    )


def _of_values(credit: Credit) -> Credited:
    values_N = torch.zeros(len(credit.mask)) if credit.values is None else credit.values
    kl_N = torch.zeros(len(credit.mask)) if credit.kl is None else credit.kl
    options = credit.options
    parts = [
        gae(
            reward,
            value,
            mask,
            gamma=options.gamma,
            lam=options.gae_lambda,
            kl_T=kl,
            kl_coefficient=0.0 if credit.kl is None else credit.kl_coefficient,
        )
        for reward, value, mask, kl in zip(
            credit.rewards,
            torch.split(values_N, credit.lengths),
            torch.split(credit.mask, credit.lengths),
            torch.split(kl_N, credit.lengths),
            strict=True,
        )
    ]
    advantage_N, returns_N, mask_N = (torch.cat(each) for each in zip(*parts, strict=True))
    if options.whiten and bool(mask_N.any()):
        advantage_N = whiten(advantage_N, mask_N)[0]
    return Credited(advantage_N, mask_N, returns_N)


def _of_liked(credit: Credit) -> Credited:
    """1 for what was rewarded above 0. Nothing else is imitated, and nothing is pushed away."""
    liked = [reward is not None and math.isfinite(reward) and reward > 0 for reward in credit.rewards]
    return _by_sample(credit, torch.ones(len(liked)), torch.tensor(liked))


def _of_every(credit: Credit) -> Credited:
    """1 for every token, whatever the reward."""
    return Credited(credit.mask.float(), credit.mask)


def _of_pairs(credit: Credit) -> Credited:
    owners_N = torch.arange(len(credit.lengths)).repeat_interleave(torch.tensor(credit.lengths))
    found = preference_advantage(
        credit.pairs, credit.mask, owners_N, credit.own, credit.reference, beta=credit.options.beta
    )
    return Credited(found.advantage, found.mask, pairs=found.pairs)


ESTIMATORS: dict[str, Estimator] = {
    "reward": _of_reward,
    "group": _of_group,
    "leave_one_out": _leave_one_out,
    "batch": _of_batch,
    "session": _of_session,
    "gae": _of_values,
    "liked": _of_liked,
    "every": _of_every,
    "pairs": _of_pairs,
}
"""By the name in a recipe's `advantage.kind`."""


def _by_sample(credit: Credit, advantage_B: Tensor, mask_B: Tensor) -> Credited:
    mask_N = credit.spread(mask_B) & credit.mask
    return Credited(torch.where(mask_N, credit.spread(advantage_B), 0.0), mask_N)
