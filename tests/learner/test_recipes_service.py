"""Recipes of every kind through the learner's service: samples end as they should, and the log makes the same weights
again, to the bit."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from typing import Any

import pytest

from learner.checkpoints import version_dir
from learner.errors import LearnerStopped
from learner.fold import resume
from learner.service import run_learner
from schemas.recipes import recipe_named
from tests.learner.learning import Learning, Turn

pytestmark = pytest.mark.stack

NOBODY = {"votes": 0}
TAUGHT = {"patterns": ["x"], "votes": 0}
FAST: dict[str, Any] = {"optimizer": {"lr": 1e-3, "warmup_steps": 3}}
RECIPES: dict[str, dict[str, Any]] = {
    "grpo": {"judge": NOBODY},
    "session-baseline": {"judge": NOBODY},
    "ppo": {"judge": NOBODY},
    # The random answers are not among a student's likeliest, so here the entries are the teacher's.
    "opd-topk": {"hint": TAUGHT, "distillation": {"kind": "divergence", "entries": "teacher"}},
    "sdpo": {"hint": TAUGHT, "distillation": {"k": 16}},
    "exopd": {"hint": TAUGHT},
}


def batch(version: int) -> list[Turn]:
    """A group with a contrast in one session, a taught turn, a turn that says nothing to anybody."""
    group, session = f"g{version}", "s"
    return [
        Turn(oldest_version=version, reward=1.0, group=group, session=session, ordinal=2 * version),
        Turn(oldest_version=version, reward=-1.0, teacher=0.5, group=group, session=session, ordinal=2 * version + 1),
        Turn(oldest_version=version, reward=None),
    ]


@pytest.mark.parametrize("name", RECIPES)
def test_the_log_makes_the_same_weights_again(start_learning: Callable[..., Learning], name: str) -> None:
    learning = start_learning(recipe=recipe_named(name, RECIPES[name] | FAST))
    messages = [learning.add_batch(batch(version), send=False) for version in range(2)]
    learning.send()
    run_learner(learning.config(stop_after=2, state_every=5))
    states = [[end[0] for end in learning.ends(message)] for message in messages]
    expected = ["dropped" if "hint" in RECIPES[name] else "trained", "trained", "dropped"]
    assert states == [expected] * 2
    weights = learning.directory / "weights" / "p"
    assert learning.weights()[1] != learning.weights()[2]
    shutil.rmtree(weights / "state")
    again = resume(learning.config(), learning.engine, threading.Event())
    assert (again.version, again.replayed) == (2, 2)
    assert again.policy.largest_difference(version_dir(learning.directory / "weights", "p", 2)) == 0.0


def test_a_held_micro_batch_stays_published_and_is_tried_again(start_learning: Callable[..., Learning]) -> None:
    """The samples' log-probs are near the tiny model's own (bfloat16), but not to 1e-4 nats."""
    recipe = recipe_named("binary-rl", {"judge": NOBODY, "loss": {"max_logprob_gap": 1e-4}})
    learning = start_learning(recipe=recipe)
    message = learning.add_batch([Turn(oldest_version=0)])
    for _ in range(2):
        with pytest.raises(LearnerStopped, match=r"loss\.max_logprob_gap"):
            run_learner(learning.config(stop_after=1))
    assert learning.one("SELECT state FROM micro_batches") == ("published",)
    assert learning.ends(message) == [("batched", None, None)]
    assert learning.one("SELECT count(*) FROM training_steps") == (0,)


def test_a_skipped_micro_batch_has_its_step_and_its_samples_their_reason(
    start_learning: Callable[..., Learning],
) -> None:
    loss = {"max_logprob_gap": 1e-4, "on_gap": "skip"}
    learning = start_learning(recipe=recipe_named("binary-rl", {"judge": NOBODY, "loss": loss}))
    message = learning.add_batch([Turn(oldest_version=0), Turn(oldest_version=0, reward=0.0)])
    run_learner(learning.config(stop_after=1))
    assert learning.ends(message) == [("dropped", "logprob_gap", 0), ("dropped", "no_signal", 0)]
    step = learning.one(
        "SELECT version, skipped_reason, (metrics ->> 'logprob_gap_mean')::float > 0 FROM training_steps"
    )
    assert step == (None, "logprob_gap", True)
    assert sorted(learning.weights()) == [0]
