"""What the reward is where judges of several kinds can tell: the rule that the recipe names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from processors.evaluators.votes import tally

Kind = Literal["HUMAN", "CODE", "LLM"]
KINDS: tuple[Kind, ...] = ("HUMAN", "CODE", "LLM")
"""By rank: who speaks first."""


@dataclass(frozen=True)
class Combined:
    """`kind`: of those who gave that value, the first by rank; where nobody decides, of those who spoke."""

    status: Literal["scored", "tie", "abstained"]
    value: float | None
    kind: Kind | None
    words: str


def combine(rule: Literal["first", "majority", "all_agree"], said: Mapping[Kind, float]) -> Combined:
    """One value of those that the kinds gave. A kind that cannot tell is not in `said`: silence is no voice.

    "first": the first kind's by rank. "majority": each kind has one voice, the score of most is the value, and two
    scores with as many are a tie, 0. "all_agree": the value that all gave; None, `abstained`, where they differ.
    """
    spoke: list[Kind] = [kind for kind in KINDS if kind in said]
    words = f"{rule} of {', '.join(f'{kind} {said[kind]:+g}' for kind in spoke) or 'nobody'}"
    if not spoke:
        return Combined("abstained", None, None, words)
    if rule == "first":
        return Combined("scored", said[spoke[0]], spoke[0], words)
    if rule == "all_agree" and len(set(said.values())) > 1:
        return Combined("abstained", None, spoke[0], words)
    counted = tally([int(said[kind]) for kind in spoke], quorum=1)
    agreeing = [kind for kind in spoke if said[kind] == counted.value]
    kind = agreeing[0] if counted.status == "scored" else spoke[0]
    return Combined(counted.status, counted.value, kind, words)
