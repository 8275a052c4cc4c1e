"""How each sample of a micro-batch ends, and what is held or skipped where engine and trainer disagree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tiny import make_sample, on_policy, same_weights, tiny_model, weights

from learner.batches import Loaded
from learner.errors import LearnerStopped
from learner.importance import MismatchSpec
from learner.samples import TrainingSample
from learner.step import PolicyTrainer
from learner.step_options import AdvantageOptions, StepOptions
from learner.train_batch import Trained, train_batch
from schemas.states import DROP_REASONS

OPTIONS = StepOptions(w_opd=0.0, lr=1e-3)
GROUPS = replace(OPTIONS, advantage=AdvantageOptions(kind="group"))


def train(trainer: PolicyTrainer, samples: list[TrainingSample], versions: list[int] | None = None) -> Trained:
    """By weights of version 5, of which at most 1 behind is allowed."""
    loaded = [
        Loaded(sample, "p", version) for sample, version in zip(samples, versions or [5] * len(samples), strict=True)
    ]
    return train_batch(trainer, loaded, policy="p", version=5, bound=1)


def reasons(step: Trained) -> list[str | None]:
    found = [end.drop.reason if end.drop else None for end in step.ends]
    assert all(reason is None or reason in DROP_REASONS for reason in found)
    return found


def candidate(seed: int, reward: float | None, group: str | None = "g") -> TrainingSample:
    return replace(on_policy(tiny_model(), make_sample(seed, reward=reward)), group_id=group)


def test_a_group_is_compared_without_its_stale_and_unscored_candidates() -> None:
    """Of four candidates two may be compared; they move as if they were alone."""
    group = [candidate(1, 1.0), candidate(2, 1.0), candidate(3, -1.0), candidate(4, None)]
    whole, alone = PolicyTrainer(tiny_model(), GROUPS), PolicyTrainer(tiny_model(), GROUPS)
    step = train(whole, group, [5, 3, 4, 5])
    assert reasons(step) == [None, "stale", None, "no_signal"]
    assert [end.staleness for end in step.ends] == [0, 2, 1, 0]
    assert (step.samples, step.metrics["staleness_mean"], step.metrics["reward_mean"]) == (2, 0.5, 0.0)
    train(alone, [group[0], group[2]])
    assert same_weights(weights(whole.model), weights(alone.model))


def test_what_has_nothing_to_be_compared_with_is_uninformative_and_says_why() -> None:
    samples = [candidate(1, 1.0), candidate(2, 1.0), candidate(3, -1.0, "h"), candidate(4, 1.0, None)]
    samples += [candidate(5, 1.0, "i"), candidate(6, 0.0, "i")]
    step = train(PolicyTrainer(tiny_model(), GROUPS), samples)
    assert reasons(step) == ["uninformative"] * 4 + [None, None]
    drops = [end.drop for end in step.ends]
    assert drops[0] is not None
    assert drops[3] is not None
    assert "of group g" in drops[0].detail
    assert "of no group" in drops[3].detail


def test_a_micro_batch_of_nothing_else_makes_no_step() -> None:
    trainer = PolicyTrainer(tiny_model(), GROUPS)
    before = weights(trainer.model)
    step = train(trainer, [candidate(1, 1.0), candidate(2, 1.0), candidate(3, None)])
    assert step.skipped_reason == "masked_batch"
    assert reasons(step) == ["uninformative", "uninformative", "masked_batch"]
    assert same_weights(before, weights(trainer.model))


def test_a_gap_beyond_the_limit_holds_the_micro_batch() -> None:
    """make_sample's log-probs are of nobody: about 2 nats from the model's."""
    trainer = PolicyTrainer(tiny_model(), replace(OPTIONS, max_logprob_gap=0.5))
    before = weights(trainer.model)
    with pytest.raises(LearnerStopped, match=r"differ by .* nats a token .* allows 0\.5 .* it is held"):
        train(trainer, [make_sample(1)])
    assert same_weights(before, weights(trainer.model))
    assert train(trainer, [candidate(2, 1.0)]).skipped_reason is None


@pytest.mark.parametrize("more", [{}, {"mismatch": (MismatchSpec(kind="reject", level="token", low=1e-6, high=1e6),)}])
def test_or_skips_it_and_leaves_no_trace(more: Any) -> None:
    """Whether the gap is known before the pass with gradient or after it."""
    options = replace(OPTIONS, max_logprob_gap=0.5, on_gap="skip", **more)
    trainer, witness = (PolicyTrainer(tiny_model(), options) for _ in range(2))
    step = train(trainer, [make_sample(1), make_sample(2)])
    assert step.skipped_reason == "logprob_gap"
    assert reasons(step) == ["logprob_gap"] * 2
    gap = step.metrics["logprob_gap_mean"]
    assert gap is not None
    assert gap > 0.5
    for one in (trainer, witness):
        assert train(one, [candidate(3, 1.0)]).skipped_reason is None
    assert same_weights(weights(trainer.model), weights(witness.model))


def test_a_sequence_outside_the_mismatch_bounds_is_off_policy_and_in_no_baseline() -> None:
    bounds = (MismatchSpec(kind="reject", level="geometric", low=0.5, high=2.0),)
    options = replace(GROUPS, mismatch=bounds, tokens_per_forward=12)
    far = replace(candidate(3, -1.0), response_logprobs=candidate(3, -1.0).response_logprobs - 3)
    samples = [candidate(1, 1.0), candidate(2, -1.0), far]
    whole, alone = PolicyTrainer(tiny_model(), options), PolicyTrainer(tiny_model(), options)
    step = train(whole, samples)
    assert reasons(step) == [None, None, "off_policy"]
    assert (step.metrics["tokens"], step.metrics["rejected_tokens"]) == (10, 5)
    train(alone, samples[:2])
    assert same_weights(weights(whole.model), weights(alone.model))
    rest = train(PolicyTrainer(tiny_model(), options), [samples[0], far])
    assert reasons(rest) == ["uninformative", "off_policy"]
    assert rest.skipped_reason == "masked_batch"
