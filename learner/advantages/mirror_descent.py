"""`k1.5`: a reward against the mean of the answers beside it (Kimi k1.5, arXiv 2501.12599, section 2.3.2).

A = r - mean r over the answers to the same prompt; no std. Where answers to one prompt are not sampled in groups, as in
live traffic, the mean is the micro-batch's. The loss that goes with it is `learner.losses.mirror_descent`.

Ignores: the paper's exact baseline, tau log Z, of which the mean is the limit for large tau.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from learner.advantages.group import group_advantage


def mirror_descent_advantage(
    rewards: Sequence[float | None], groups: Sequence[str | None] | None = None
) -> tuple[Tensor, Tensor]:
    """Advantage float32 [B] of each sample, and mask bool [B]: False (and 0) where it says nothing.

    `groups` None: the whole micro-batch is one group. What says nothing is what says nothing in `group_advantage`; the
    loss's pull to the old policy leaves it out too.

    Raises:
        ValueError: the two differ in length.
    """
    return group_advantage(rewards, ["batch"] * len(rewards) if groups is None else groups, std=False)
