"""What was erased is never trained, what was trained of it is not made again, and the learner outlives both."""

from __future__ import annotations

import threading

import pytest

from learner.errors import LearnerStopped
from learner.rebuild import rebuild
from learner.service import run_learner
from processors.erasing.session import erase_session
from tests.learner.learning import Learning, Turn

pytestmark = pytest.mark.stack


def two(version: int, session: str) -> list[Turn]:
    return [Turn(oldest_version=version, session=session), Turn(oldest_version=version, reward=-1.0)]


def erase(learning: Learning, session: str) -> None:
    with learning.engine.begin() as connection:
        erase_session(connection, session)


def again(learning: Learning, version: int) -> bool:
    return rebuild(learning.config(), learning.engine, threading.Event(), version, from_base=True).same


def test_a_sample_that_is_erased_on_its_way_is_dropped_and_the_version_is_made_again_without_it(
    learning: Learning,
) -> None:
    message = learning.add_batch(two(0, "gone"))
    erase(learning, "gone")
    assert [end[:2] for end in learning.ends(message)] == [("batched", None)] * 2
    run_learner(learning.config(stop_after=1))
    assert [end[:2] for end in learning.ends(message)] == [("dropped", "erased"), ("trained", None)]
    assert learning.one("SELECT samples_trained, samples_dropped FROM training_steps") == (1, 1)
    assert again(learning, 1)


def test_a_micro_batch_of_which_nothing_is_left_makes_no_version(learning: Learning) -> None:
    message = learning.add_batch([Turn(oldest_version=0, session="gone"), Turn(oldest_version=0, session="gone")])
    erase(learning, "gone")
    run_learner(learning.config(stop_after=1))
    assert [end[:2] for end in learning.ends(message)] == [("dropped", "erased")] * 2
    assert learning.rows("SELECT version FROM weight_versions") == [(0,)]


def test_a_version_that_had_seen_it_is_refused_with_the_samples_and_training_goes_on(learning: Learning) -> None:
    message = learning.add_batch(two(0, "gone"))
    learning.add_batch(two(1, "other"))
    run_learner(learning.config(stop_after=2))
    erase(learning, "gone")
    with pytest.raises(LearnerStopped, match=rf"{message.sample_ids[0]} \(session gone, version 1\)"):
        again(learning, 2)
    learning.add_batch(two(2, "later"))
    run_learner(learning.config(stop_after=1))
    assert learning.rows("SELECT max(version) FROM weight_versions") == [(3,)]


def test_a_learner_saves_its_state_when_a_sample_of_its_last_versions_is_erased(learning: Learning) -> None:
    """Erased while the learner held the micro-batch in memory; killed right after the step, it goes on."""
    learning.add_batch(two(0, "gone"))

    def erase_then_die(point: str) -> None:
        if point == "after_load":
            erase(learning, "gone")
        if point == "after_state_save":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_learner(learning.config(stop_after=1, state_every=100, fault=erase_then_die))
    assert learning.one("SELECT state FROM samples WHERE session_id = 'gone'") == ("trained",)
    learning.add_batch(two(1, "later"))
    run_learner(learning.config(stop_after=1))
    assert learning.rows("SELECT max(version) FROM weight_versions") == [(2,)]


def test_without_a_saved_state_the_learner_says_what_to_do(learning: Learning) -> None:
    def die(point: str) -> None:
        if point == "after_commit":
            raise KeyboardInterrupt

    learning.add_batch(two(0, "gone"))
    with pytest.raises(KeyboardInterrupt):
        run_learner(learning.config(stop_after=1, fault=die))
    erase(learning, "gone")
    with pytest.raises(LearnerStopped, match="start a policy of another name from its weights"):
        run_learner(learning.config(stop_after=1))
