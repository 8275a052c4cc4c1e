"""The states of derived work, as tables: what may follow what, and why a turn was not trained.

The same tuples make the CHECK constraints in `schemas.tables` and the checks in code, so neither can drift.
"""

from __future__ import annotations

SAMPLE_STATES = ("pending", "ready", "batched", "trained", "dropped")
"""A turn's way through a run. `batched`: in a published micro-batch that the learner has not committed yet."""

SAMPLE_TRANSITIONS: dict[str, tuple[str, ...]] = {
    "pending": ("ready", "dropped"),
    "ready": ("batched", "dropped"),
    "batched": ("trained", "dropped"),
    "dropped": ("pending",),
    "trained": (),
}
"""`dropped` goes back to `pending` only from `no_next_state`, when a next state arrives late."""

DROP_REASONS: dict[str, str] = {
    "side_turn": "the turn was marked as a side turn: recorded, not trained",
    "no_next_state": "the session ended and nothing had answered the turn",
    "aborted": "the answer was cut off by the client or the server",
    "error": "the policy server failed",
    "no_tokens": "no token ids of prompt or response were recorded",
    "redacted": "text of the turn was replaced by a redaction rule, so its tokens were not kept",
    "retokenised": "token ids come from text that was tokenised again, and the recipe needs sampled log-probs",
    "not_renderable": "the policy's chat template and tokenizer make no tokens of its text",
    "logprob_length_mismatch": "not one log-prob for each response token",
    "non_finite_logprob": "a recorded log-prob is not a finite number",
    "other_policy": "another policy than the run's answered: its weight versions cannot be compared",
    "unknown_version": "the server did not say which weight version made the tokens",
    "reward_abstained": "too few valid votes, and no hint to learn from",
    "reward_failed": "the judge failed after all retries, and no hint to learn from",
    "hint_failed": "the hint or teacher failed after all retries, and no reward to learn from",
    "no_signal": "every signal is final and none carries a gradient (neutral reward, no accepted hint)",
    "uninformative": "its reward says nothing beside those it is compared with (alone in its group, all equal)",
    "stale": "the weights had moved on by more than the recipe's staleness bound",
    "off_policy": "engine and trainer differ too much on each of its tokens (the recipe's mismatch bounds)",
    "logprob_gap": "engine and trainer differ too much over the micro-batch, so no step was taken",
    "non_finite_batch": "the micro-batch gave a non-finite loss or gradient, so no step was taken",
    "masked_batch": "every token of the micro-batch was masked, so no step was taken",
    "erased": "the session's text was erased on request",
}
"""The closed list of reasons why a turn is not trained, each with the sentence that explains it."""

EVALUATION_STATES = ("waiting", "open", "claimed", "done", "failed")
"""Work of an evaluator. `waiting`: it needs another evaluation first (a teacher waits for its hint)."""

EVALUATION_TRANSITIONS: dict[str, tuple[str, ...]] = {
    "waiting": ("open", "done"),
    "open": ("claimed", "failed"),
    "claimed": ("open", "done", "failed"),
    "done": (),
    "failed": (),
}
"""`claimed` goes back to `open` when its lease ends or a transient fault asks for another try."""

DEAD_LETTER_STATES = ("open", "replayed", "dropped")
"""A record that could not be recorded. `open`: nobody has settled it; `replayed`: it was published again, and if that
failed too, the new record is a dead letter of its own; `dropped`: somebody said that it is not needed."""

DEAD_LETTER_TRANSITIONS: dict[str, tuple[str, ...]] = {
    "open": ("replayed", "dropped"),
    "replayed": (),
    "dropped": ("replayed",),
}

SIGNALS = ("reward", "hint", "teacher")
REWARD_STATUSES = ("scored", "tie", "abstained", "failed")
HINT_STATUSES = ("accepted", "none", "failed")
VOTE_STATUSES = ("valid", "invalid", "error")
ANNOTATOR_KINDS = ("LLM", "CODE", "HUMAN")
RUN_KINDS = ("live", "replay")
STOP_AFTER = ("rewards", "samples", "weights")
"""How far a replay goes."""
MICRO_BATCH_STATES = ("published", "consumed")
COMPLETED_BY = ("next_turn", "session_closed")


def may_follow(transitions: dict[str, tuple[str, ...]], before: str, after: str) -> bool:
    """Whether `after` may follow `before`.

    Raises:
        KeyError: `before` is no state of this table.
    """
    return after in transitions[before]


def must_follow(transitions: dict[str, tuple[str, ...]], before: str, after: str) -> None:
    """Called before a statement that makes this change.

    Raises:
        AssertionError: `after` may not follow `before`.
        KeyError: `before` is no state of this table.
    """
    if not may_follow(transitions, before, after):
        raise AssertionError(f"{after} must not follow {before}")
