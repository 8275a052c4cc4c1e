"""Soft overlong punishment: a reward that falls before the length limit is hit (DAPO, arXiv 2503.14476, eq. 13).

0 up to L_max - L_cache tokens, then linear down to -factor at L_max, and -factor beyond. An answer that was cut off is
not bad for what it says, and a sharp -1 at the limit is noise; a slope can be learnt from.

Ignores: what the tokens are. Count those that the policy sampled, so that tool output is not punished.
"""

from __future__ import annotations


def overlong_penalty(length: int, *, limit: int, buffer: int, factor: float = 1.0) -> float:
    """What is added to the reward of an answer of `length` tokens, from -factor to 0.

    Raises:
        ValueError: the buffer is not within the limit.
    """
    if not 0 < buffer <= limit:
        raise ValueError(f"an overlong buffer of {buffer} tokens must be within 1 and the limit of {limit}")
    return -factor * min(max(length - (limit - buffer), 0), buffer) / buffer


def shaped_reward(reward: float | None, length: int, *, limit: int, buffer: int, factor: float = 1.0) -> float | None:
    """`reward` with the penalty; None stays None, since what was not scored is not bad."""
    return None if reward is None else reward + overlong_penalty(length, limit=limit, buffer=buffer, factor=factor)
