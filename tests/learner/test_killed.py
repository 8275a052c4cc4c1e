"""Killed at any point, a learner goes on as if it had not been: same versions, same bits, no sample twice or lost."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from learner.checkpoints import TEMPORARY, policy_dir, version_dir
from learner.fold import resume
from learner.manifest import PRUNING, base_of, has_weights, kind_of, result_files
from learner.trainer_state import read_states, state_file
from schemas.recipes import recipe_named
from tests.learner.forking import Learners
from tests.learner.learner_process import DIED
from tests.learner.learning import Learning, mixed

pytestmark = pytest.mark.stack

BATCHES = 5
SETTINGS: dict[str, Any] = {"publish": "delta", "full_every": 3, "keep_last": 2, "state_every": 2}
"""Versions 0 and 3 are full, the others deltas of those; 1 goes when 3 is there; states follow versions 2 and 4."""

# Point: (how often it is passed before the kill, steps that are committed then). Version 0 is written too, so the
# points of writing are passed once more.
POINTS = {
    "after_load": (3, 2),
    "after_step": (3, 2),
    "mid_save": (4, 2),
    "before_manifest": (5, 3),
    "after_manifest_before_rename": (4, 2),
    "after_rename": (5, 3),
    "before_commit": (3, 2),
    "after_commit": (4, 4),
    "mid_state_save": (2, 4),
    "after_state_save": (1, 2),
    "mid_prune": (1, 3),
    "mid_upload": (2, None),
}


@pytest.fixture(scope="module")
def learners() -> Iterator[Learners]:
    """Where learners are forked from."""
    made = Learners()
    yield made
    made.close()


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, Any]:
    """What the first learner of each kind leaves, the one that nobody kills where all tests run."""
    return {}


def left_behind(learning: Learning) -> dict[str, Any]:
    """Everything that the next step, or a server, depends on."""
    weights = learning.directory / "weights"
    rows = learning.rows("SELECT version, manifest FROM weight_versions ORDER BY version")
    state = next(read_states(weights, "p", BATCHES))
    return {
        "kinds": [kind_of(manifest) for _, manifest in rows],
        "files": {version: result_files(manifest) for version, manifest in rows},
        "on disk": {
            path.relative_to(weights).as_posix()
            for path in policy_dir(weights, "p").rglob("*")
            if path.parent.name != "state"
        },
        "state": state["trainer"],
        "state of": state["version"],
        "steps": learning.rows("SELECT step, version, metrics, tokens FROM training_steps ORDER BY step"),
    }


def check_ledger(learning: Learning) -> None:
    steps = learning.rows("SELECT step, version FROM training_steps WHERE run = :run ORDER BY step")
    assert steps == [(i, i) for i in range(1, BATCHES + 1)]
    assert learning.one("SELECT count(*) FROM samples WHERE state = 'trained' AND run = :run") == (4 * BATCHES,)
    assert learning.one("SELECT trained, dropped, balance FROM ledger WHERE run = :run") == (4 * BATCHES, 0, 0)
    assert learning.one("SELECT count(*) FROM outbox WHERE topic = 'weights'") == (BATCHES + 1,)


def assert_same(one: Any, other: Any, where: str = "") -> None:
    """Equal to the bit, tensors too."""
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype, where
        assert one.shape == other.shape, where
        assert one.reshape(-1).view(torch.uint8).tolist() == other.reshape(-1).view(torch.uint8).tolist(), where
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for name, value in one.items():
            assert_same(value, other[name], f"{where}/{name}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for place, value in enumerate(one):
            assert_same(value, other[place], f"{where}/{place}")
    else:
        assert one == other, where


def batches(learning: Learning) -> None:
    for version in range(BATCHES):
        learning.add_batch(mixed(version), send=False)
    learning.send()


def committed(learning: Learning) -> int:
    return int(learning.one("SELECT count(*) FROM training_steps WHERE run = :run")[0])


@pytest.mark.parametrize("point", [None, *POINTS])
def test_a_kill_at_any_point_ends_in_the_same_bits(
    learning: Learning, learners: Learners, point: str | None, uninterrupted: dict[str, Any]
) -> None:
    batches(learning)
    settings = SETTINGS | ({"upload_url": f"file://{learning.directory}/copies"} if point == "mid_upload" else {})
    if point is not None:
        count, steps = POINTS[point]
        assert learners.run(learning, point=point, count=count, **settings) == DIED
        assert steps in (None, committed(learning))
    left = BATCHES - committed(learning)
    assert learners.run(learning, stop_after=left or None, **settings) == 0
    check_ledger(learning)
    now = left_behind(learning)
    assert now["kinds"] == ["full", "delta", "delta", "full", "delta", "delta"]
    assert now["state of"] == BATCHES
    if point == "mid_upload":
        copies = {path.parent.name for path in (learning.directory / "copies").rglob("manifest.json")}
        assert copies == {f"v{version:06d}" for version in range(BATCHES + 1)}
        now["on disk"] = None  # when a copy is done decides which files retention leaves, and nothing else
        assert_same(now, uninterrupted.get("deltas", now) | {"on disk": None})
    else:
        assert_same(now, uninterrupted.setdefault("deltas", now))


HINT = {"hint": {"patterns": ["x"], "votes": 0}, "optimizer": {"lr": 1e-3}, "batch": {"max_staleness": 1}}
COMPANIONS = {
    "critic": recipe_named("ppo", {"judge": {"votes": 0}, "optimizer": {"lr": 1e-3, "warmup_steps": 4}}),
    "ema teacher": recipe_named("sdpo", HINT),
    "best teacher": recipe_named(
        "sdpo", {**HINT, "judge": {"votes": 0}, "teacher": {"weights": "best", "best_min_samples": 2}}
    ),
}


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("name", COMPANIONS)
def test_what_learns_beside_the_policy_comes_back_too(
    start_learning: Callable[..., Learning],
    learners: Learners,
    name: str,
    killed: bool,
    uninterrupted: dict[str, Any],
) -> None:
    """Killed once before the first state and once after it: critic, teacher and warm-up are where they were."""
    learning = start_learning(recipe=COMPANIONS[name])
    batches(learning)
    for point, count in (("before_commit", 2), ("after_rename", 2)) if killed else ():
        assert learners.run(learning, point=point, count=count, state_every=2) == DIED
    assert learners.run(learning, stop_after=BATCHES - committed(learning), state_every=2) == 0
    assert learning.one("SELECT trained + dropped, balance FROM ledger WHERE run = :run") == (4 * BATCHES, 0)
    now = left_behind(learning)
    assert now["state of"] == BATCHES
    assert_same(now, uninterrupted.setdefault(name, now))


LORA = {"judge": {"votes": 0}, "optimizer": {"lr": 1e-2}, "lora": {"rank": 2}}


@pytest.mark.parametrize(
    ("publish", "point"),
    [
        ("full", "after_step"),
        ("full", "after_state_save"),
        ("adapter", "before_commit"),
        ("adapter", "mid_state_save"),
    ],
)
def test_adapters_over_an_earlier_runs_weights_come_back_too(
    learning: Learning, learners: Learners, publish: str, point: str
) -> None:
    """A run that trained all weights, then one that trains adapters over what came out: killed, it goes on over the
    same weights, which retention leaves as long as adapters are for them."""
    for version in range(2):
        learning.add_batch(mixed(version), send=False)
    learning.send()
    assert learners.run(learning, stop_after=2, keep_last=2) == 0
    learning.start_run(f"{learning.run}-b", recipe_named("binary-rl", LORA))
    for version in range(2, 2 + BATCHES):
        learning.add_batch(mixed(version), send=False)
    learning.send()
    settings = {"publish": publish, "keep_last": 2, "state_every": 2}
    assert learners.run(learning, point=point, count=2, **settings) == DIED
    assert learners.run(learning, stop_after=BATCHES - committed(learning), **settings) == 0
    weights = learning.directory / "weights"
    state = next(read_states(weights, "p", 2 + BATCHES))
    assert (state["version"], state["under"]) == (2 + BATCHES, 2)
    shutil.rmtree(policy_dir(weights, "p") / "state")
    folded = resume(learning.config(), learning.engine, threading.Event())
    assert folded.replayed == 2 + BATCHES
    assert_same(folded.policy.trainer.state_dict(), state["trainer"])
    rows = learning.rows("SELECT version, manifest FROM weight_versions ORDER BY version")
    kinds = [(kind_of(manifest), base_of(manifest)) for _, manifest in rows]
    expected = ("adapter", 2) if publish == "adapter" else ("full", None)
    assert kinds == [("full", None)] * 3 + [expected] * BATCHES
    there = [v for v, _ in rows if has_weights(version_dir(weights, "p", v))]
    assert there == [0, 2, BATCHES + 1, BATCHES + 2]


def test_a_fold_in_one_go_ends_in_the_same_bits(learning: Learning, learners: Learners) -> None:
    batches(learning)
    assert learners.run(learning, stop_after=BATCHES, **SETTINGS) == 0
    weights = learning.directory / "weights"
    (newest, *_) = read_states(weights, "p", BATCHES)
    shutil.rmtree(policy_dir(weights, "p") / "state")
    folded = resume(learning.config(), learning.engine, threading.Event())
    assert folded.replayed == BATCHES
    assert_same(folded.policy.trainer.state_dict(), newest["trainer"])


def test_kill_9_at_random_moments(learning: Learning, learners: Learners) -> None:
    batches(learning)
    for seconds in (0.0, 0.05, 0.1):
        before = committed(learning)
        child = learners.start(learning, state_every=1)
        deadline = time.monotonic() + 60
        while committed(learning) == before and before != BATCHES and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        assert learners.wait() == -signal.SIGKILL
    left = BATCHES - committed(learning)
    if left:
        assert learners.run(learning, stop_after=left) == 0
    check_ledger(learning)


def test_sigterm_finishes_and_saves(learning: Learning, learners: Learners) -> None:
    learning.add_batch(mixed(0))
    child = learners.start(learning)
    deadline = time.monotonic() + 60
    while not committed(learning) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(child, signal.SIGTERM)
    assert learners.wait() == 0
    assert state_file(learning.directory / "weights", "p", 1).exists()
    resumed = resume(learning.config(), learning.engine, threading.Event())
    assert (resumed.version, resumed.replayed) == (1, 0)


def test_what_a_killed_learner_left_half_written_goes(learning: Learning, learners: Learners) -> None:
    batches(learning)
    weights = policy_dir(learning.directory / "weights", "p")
    assert learners.run(learning, point="mid_state_save", count=1, **SETTINGS) == DIED
    assert [path.name for path in (weights / "state").iterdir()] == [f"{TEMPORARY}v000002.pt"]
    assert learners.run(learning, point="mid_save", count=1, **SETTINGS) == DIED
    assert (weights / f"{TEMPORARY}v000003").is_dir()
    assert learners.run(learning, point="mid_prune", count=1, **SETTINGS) == DIED
    assert (version_dir(learning.directory / "weights", "p", 1) / PRUNING).exists()
    assert learners.run(learning, stop_after=BATCHES - committed(learning), **SETTINGS) == 0
    assert not [path for path in weights.rglob("*") if path.name.startswith(TEMPORARY) or path.name == PRUNING]
    check_ledger(learning)
