"""When a sample is decided, and why it is not trained."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from processors.evaluators import queue
from processors.evaluators.completion import Outcome, complete
from processors.evaluators.hint import HintResult, failed_hint
from processors.evaluators.judge import RewardResult, failed_reward
from processors.evaluators.queue import Signal
from processors.evaluators.teacher import TeacherScores
from processors.settling import Signals, settle, why_not_trained
from schemas.arrays import pack_floats, pack_ids
from schemas.digests import sample_digest
from schemas.recipes import PRESETS
from tests.processors.conversations import Recording, turn
from tests.processors.evaluating import answered, balance

GOOD = RewardResult(status="scored", value=1.0, annotator_kind="LLM", votes_valid=3, votes_total=3, explanation="good")
TIE = RewardResult(status="tie", value=0.0, annotator_kind="LLM", votes_valid=2, votes_total=3, explanation="tie")
ABSTAINED = RewardResult(
    status="abstained", value=None, annotator_kind="LLM", votes_valid=1, votes_total=3, explanation="1 of 3"
)
HINT = HintResult(
    status="accepted", text="Answer briefly.", annotator_kind="LLM", votes_valid=3, votes_total=3, reason=None
)
NO_HINT = HintResult(status="none", text=None, annotator_kind="LLM", votes_valid=3, votes_total=3, reason="no hint")
SCORES = TeacherScores(
    teacher="policy",
    version=1,
    hinted_prompt_ids=pack_ids([1, 2, 9]),
    logprobs=pack_floats([-0.5, -0.5, -0.5]),
    top_k=4,
    topk_ids=pack_ids(range(12)),
    topk_logprobs=pack_floats([-1.0] * 12),
    mean_gain=-0.2,
    answer_digest="d",
    question_digest="question",
)


@pytest.mark.parametrize(
    ("recipe", "signals", "reason"),
    [
        ("binary-rl", Signals(reward_status="scored", reward=1.0), None),
        ("binary-rl", Signals(reward_status="scored", reward=-1.0), None),
        ("binary-rl", Signals(reward_status="scored", reward=0.0), "no_signal"),
        ("binary-rl", Signals(reward_status="tie", reward=0.0), "no_signal"),
        ("binary-rl", Signals(reward_status="abstained"), "reward_abstained"),
        ("binary-rl", Signals(reward_status="failed"), "reward_failed"),
        ("opd", Signals(hint_status="accepted", teacher_state="done", taught=True), None),
        ("opd", Signals(hint_status="none", teacher_state="done"), "no_signal"),
        ("opd", Signals(hint_status="failed", teacher_state="done"), "hint_failed"),
        ("opd", Signals(hint_status="accepted", teacher_state="failed"), "hint_failed"),
        ("combine", Signals(reward_status="tie", reward=0.0, hint_status="accepted", taught=True), None),
        ("combine", Signals(reward_status="failed", hint_status="accepted", taught=True), None),
        ("combine", Signals(reward_status="scored", reward=1.0, hint_status="failed"), None),
        ("combine", Signals(reward_status="failed", hint_status="failed"), "reward_failed"),
        ("combine", Signals(reward_status="abstained", hint_status="failed"), "hint_failed"),
        ("combine", Signals(reward_status="abstained", hint_status="none"), "reward_abstained"),
        ("combine", Signals(reward_status="scored", reward=0.0, hint_status="none"), "no_signal"),
    ],
)
def test_the_reason_why_a_sample_is_not_trained(recipe: str, signals: Signals, reason: str | None) -> None:
    verdict = why_not_trained(PRESETS[recipe], signals)
    assert (verdict and verdict[0]) == reason
    if verdict:
        assert verdict[1]


def finished(recording: Recording, signal: Signal, result: Any, reason: str | None = None) -> None:
    """Claim the signal's only open evaluation and finish it with `result`."""
    with recording.engine.begin() as connection:
        (claim,) = queue.claim(connection, signal=signal, worker="w", n=5, lease_s=30.0)
        assert complete(connection, [Outcome(claim=claim, session_id="s", result=result, reason=reason)]) == []


@pytest.mark.stack
def test_a_sample_is_decided_when_its_last_signal_is_final(recording: Recording) -> None:
    recording.record(*answered("t"))
    assert recording.signals("t") == {"reward": "open", "hint": "open", "teacher": "waiting"}
    finished(recording, "reward", GOOD)
    assert recording.sample("t")[0] == "pending"
    finished(recording, "hint", HINT)
    assert recording.signals("t") == {"reward": "done", "hint": "done", "teacher": "open"}
    assert recording.sample("t")[0] == "pending"
    finished(recording, "teacher", SCORES)
    assert recording.sample("t")[:2] == ("ready", None)
    tokens = turn("t").tokens
    (digest,) = recording.one("SELECT content_digest FROM samples WHERE ready_at IS NOT NULL")
    assert digest == sample_digest(
        prompt_ids=pack_ids(tokens.prompt_ids),
        response_ids=pack_ids(tokens.response_ids),
        response_logprobs=pack_floats(tokens.response_logprobs),
        reward=1.0,
        teacher_logprobs=SCORES.logprobs,
        topk_ids=SCORES.topk_ids,
        topk_logprobs=SCORES.topk_logprobs,
    )
    assert balance(recording)["ready"] == 1
    with recording.engine.begin() as connection:
        again = settle(connection, "live", ["t"])
    assert (again.ready, again.dropped) == (0, 0)


@pytest.mark.stack
@pytest.mark.parametrize(
    ("reward", "hint", "teacher", "reason"),
    [
        (ABSTAINED, NO_HINT, "done", "reward_abstained"),
        (TIE, NO_HINT, "done", "no_signal"),
        (ABSTAINED, failed_hint("500"), "done", "hint_failed"),
        (failed_reward("500"), NO_HINT, "done", "reward_failed"),
    ],
)
def test_a_sample_without_a_signal_is_dropped_with_its_reason(
    recording: Recording, reward: RewardResult, hint: HintResult, teacher: str, reason: str
) -> None:
    recording.record(*answered("t"))
    finished(recording, "hint", hint)
    finished(recording, "reward", reward)
    assert recording.signals("t")["teacher"] == teacher
    assert recording.sample("t")[:2] == ("dropped", reason)
    assert recording.one("SELECT value IS NULL, value FROM rewards") == (reward.value is None, reward.value)
    assert balance(recording)["dropped"] == 1


@pytest.mark.stack
def test_a_teacher_that_fails_is_told_with_its_reason(recording: Recording) -> None:
    recording.record(*answered("t"))
    finished(recording, "hint", HINT)
    finished(recording, "reward", TIE)
    finished(recording, "teacher", None, reason="length: 3 places for 9")
    state, reason, detail = recording.one("SELECT state, drop_reason, drop_detail FROM samples")
    assert (state, reason) == ("dropped", "hint_failed")
    assert "length: 3 places" in detail
    assert recording.one("SELECT count(*) FROM teacher_scores") == (0,)


@pytest.mark.stack
def test_a_turn_that_is_not_trained_is_judged_and_stays_dropped(recording: Recording) -> None:
    recording.record(*answered("t", finish_reason="stop", tokens=type(turn("t").tokens)()))
    assert recording.sample("t")[:2] == ("dropped", "no_tokens")
    assert recording.signals("t") == {"reward": "open", "hint": "open", "teacher": "done"}
    finished(recording, "reward", GOOD)
    finished(recording, "hint", HINT)
    assert recording.signals("t")["teacher"] == "done"
    assert recording.sample("t")[:2] == ("dropped", "no_tokens")


@pytest.mark.stack
def test_two_signals_that_finish_at_the_same_time_settle_their_sample(recording: Recording) -> None:
    """Neither transaction can see that the other has finished; the one that commits last must decide."""
    recording.record(*answered("t"))
    with recording.engine.begin() as setup:
        (reward,) = queue.claim(setup, signal="reward", worker="a", n=1, lease_s=30.0)
        (hint,) = queue.claim(setup, signal="hint", worker="b", n=1, lease_s=30.0)

    def second() -> None:
        with recording.engine.begin() as connection:
            complete(connection, [Outcome(claim=hint, session_id="s", result=NO_HINT)])

    with recording.engine.begin() as first:
        complete(first, [Outcome(claim=reward, session_id="s", result=GOOD)])
        waiting = threading.Thread(target=second)
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
    waiting.join(10)
    assert not waiting.is_alive()
    assert recording.sample("t")[0] == "ready"
