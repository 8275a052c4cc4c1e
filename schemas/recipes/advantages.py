"""The advantages that a recipe can name, and what each needs of the data.

The learner has one function for each (`learner.estimators`); a test holds the two lists together. What stands here is
all that batcher and settling have to know: to add an advantage, add its row.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Advantage:
    """`zero_counts`: a reward of 0 is a reward, since it is compared with others (else it is no signal).
    `whole_groups`: it compares the candidates of one prompt, so a micro-batch must hold them all.
    `session_rewards`: it reads the rewards of the session's earlier turns. `critic`: it needs a value function.
    `liked_only`: only a reward above 0 says anything. `unrewarded`: a turn without a reward is trained too. `pairs`: it
    compares two answers to the same messages, so a micro-batch must hold both."""

    zero_counts: bool = True
    whole_groups: bool = False
    session_rewards: bool = False
    critic: bool = False
    liked_only: bool = False
    unrewarded: bool = False
    pairs: bool = False


ADVANTAGES: dict[str, Advantage] = {
    "reward": Advantage(zero_counts=False),
    "group": Advantage(whole_groups=True),
    "leave_one_out": Advantage(whole_groups=True),
    "batch": Advantage(),
    "session": Advantage(session_rewards=True),
    "gae": Advantage(critic=True),
    "liked": Advantage(zero_counts=False, liked_only=True),
    "every": Advantage(unrewarded=True),
    "pairs": Advantage(pairs=True),
}
