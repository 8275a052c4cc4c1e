"""Whether a turn can carry a gradient at all, read from the turn alone: before anybody judges it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from schemas.events import TurnRecorded, VersionSpan

_FLOAT32_MAX = 3.4028234663852886e38

NEVER_JUDGED = frozenset({"side_turn", "aborted", "error", "other_policy", "erased"})
"""Drop reasons of turns that nobody judges. The others are judged although they are not trained: a reward needs no
token ids, and imported logs are asked for theirs."""


@dataclass(frozen=True)
class Drop:
    """A reason of `schemas.states.DROP_REASONS`, and the same in words with numbers."""

    reason: str
    detail: str


def untrainable(turn: TurnRecorded, *, text: bool = False) -> Drop | None:
    """Why `turn` can never be trained; None where it can, if its signals allow.

    The first reason that holds is given, so the same turn always gets the same one. `text`: for a recipe that needs no
    token ids, since the learner makes them of the text, and reads no log-probs and no version.
    """
    tokens = turn.tokens
    prompt, response, logprobs = len(tokens.prompt_ids), len(tokens.response_ids), len(tokens.response_logprobs)
    if turn.kind == "side":
        return Drop("side_turn", "marked as a side turn by its caller")
    if turn.finish_reason == "aborted":
        return Drop("aborted", f"the answer was cut off after {response} tokens")
    if turn.finish_reason == "error":
        return Drop("error", "the policy server failed")
    if turn.redacted:
        # Not as text either: the policy never saw or said the placeholders.
        return Drop("redacted", "a redaction rule replaced text of the turn; its tokens were not kept")
    if text:
        return None
    if tokens.source == "none" or not prompt or not response:
        return Drop("no_tokens", f"token source {tokens.source}: {prompt} prompt ids, {response} response ids")
    if tokens.source == "retokenised":
        return Drop("retokenised", f"{response} response ids come from text, not from the engine")
    if logprobs != response:
        return Drop("logprob_length_mismatch", f"{logprobs} log-probs for {response} response ids")
    # One sum tells that all are finite numbers, as they mostly are: a NaN fails the comparison.
    values = [value for value in tokens.response_logprobs if value is not None]
    finite = len(values) == logprobs and sum(map(abs, values)) <= _FLOAT32_MAX
    bad = [] if finite else [i for i, value in enumerate(tokens.response_logprobs) if not _is_float32(value)]
    if bad:
        return Drop("non_finite_logprob", f"{len(bad)} of {response} log-probs are not finite, the first at {bad[0]}")
    gap = _unknown_from(turn.policy.spans, response)
    if gap is not None:
        return Drop("unknown_version", f"no weight version is known from response token {gap} of {response} on")
    return None


def of_another_policy(turn: TurnRecorded, policy: str) -> Drop | None:
    """Why a turn that could be trained is none of a run that trains `policy`; None where it is.

    Weight versions of two policies cannot be compared, so its staleness would mean nothing. It is not judged either:
    the run of its own policy does that, and two runs on one log would pay for every turn twice.
    """
    if turn.policy.name == policy:
        return None
    return Drop("other_policy", f"answered by policy {turn.policy.name!r}; the run trains {policy!r}")


def versions(spans: list[VersionSpan]) -> tuple[int | None, int | None]:
    """Lowest and highest weight version of `spans`; None, None where there is none or one is unknown."""
    known = [span.version for span in spans if span.version is not None]
    if not known or len(known) != len(spans):
        return None, None
    return min(known), max(known)


def _is_float32(value: float | None) -> bool:
    """A finite number, also once it is stored as float32: 1e39 is finite only as a double."""
    return value is not None and math.isfinite(value) and abs(value) <= _FLOAT32_MAX


def _unknown_from(spans: list[VersionSpan], length: int) -> int | None:
    """The first of `length` tokens that no span with a version covers; None where all are covered."""
    covered = 0
    for span in sorted(spans, key=lambda span: span.start):
        if span.version is None or span.start > covered:
            break
        covered = max(covered, span.end)
    return covered if covered < length else None
