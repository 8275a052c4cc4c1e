"""Killed at any point, a learner goes on as if it had not been: same versions, same bits, no sample twice or lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from learner.checkpoints import TEMPORARY, locate, policy_dir, prune, version_dir, write_version
from learner.config import no_fault
from learner.fold import resume
from learner.manifest import Lineage
from learner.service import run_learner
from learner.trainer_state import STATES_KEPT, read_states, state_file, write_state
from tests.learner.learner_process import DIED
from tests.learner.learning import Learning, mixed

ROOT = Path(__file__).parents[2]
POINTS = ("after_load", "after_step", "mid_save", "after_rename", "before_commit", "after_commit")
BATCHES = 4


def spawn(learning: Learning, **more: object) -> subprocess.Popen[bytes]:
    plain = {name: value for name, value in asdict(learning.config()).items() if name != "fault"} | more
    return subprocess.Popen(
        [sys.executable, "-m", "tests.learner.learner_process", json.dumps(plain, default=str)],
        cwd=ROOT,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
    )


def check_ledger(learning: Learning) -> None:
    steps = learning.rows("SELECT step, version FROM training_steps WHERE run = :run ORDER BY step")
    assert steps == [(i, i) for i in range(1, BATCHES + 1)]
    assert learning.one("SELECT count(*) FROM samples WHERE state = 'trained' AND run = :run") == (4 * BATCHES,)
    assert learning.one("SELECT trained, dropped, balance FROM ledger WHERE run = :run") == (4 * BATCHES, 0, 0)
    assert learning.one("SELECT count(*) FROM outbox WHERE topic = 'weights'") == (BATCHES + 1,)


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, dict[int, str]]:
    """SHA-256 of every version's weights, filled by the first test that runs through."""
    return {}


@pytest.mark.stack
@pytest.mark.slow
@pytest.mark.parametrize("point", [None, *POINTS])
def test_a_kill_at_any_point_ends_in_the_same_bits(
    learning: Learning, point: str | None, uninterrupted: dict[str, dict[int, str]]
) -> None:
    """Killed in the third micro-batch, with a state of version 2 to go on from or, for half of the points, none."""
    for version in range(BATCHES):
        learning.add_batch(mixed(version))
    state_every = 2 if point in POINTS[::2] else 4
    if point is not None:
        # Version 0 is written too, so the points of writing are passed once more.
        count = 4 if point in ("mid_save", "after_rename") else 3
        assert spawn(learning, point=point, count=count, state_every=state_every).wait(120) == DIED
        done = learning.one("SELECT count(*) FROM training_steps WHERE run = :run")
        assert done == ((3,) if point == "after_commit" else (2,))
        on_disk = version_dir(learning.directory / "weights", "p", 3).is_dir()
        assert on_disk == (point in ("after_rename", "before_commit", "after_commit"))
        states = policy_dir(learning.directory / "weights", "p") / "state"
        assert states.exists() == (state_every == 2)
    left = BATCHES - learning.one("SELECT count(*) FROM training_steps WHERE run = :run")[0]
    run_learner(learning.config(stop_after=left, state_every=state_every))
    check_ledger(learning)
    assert list((learning.directory / "weights" / "p").glob(f"{TEMPORARY}*")) == []
    # Each test's micro-batches are the same numbers, so the weights must be too; and so says a fold in one go.
    assert learning.weights() == uninterrupted.setdefault("weights", learning.weights())
    shutil.rmtree(policy_dir(learning.directory / "weights", "p") / "state")
    folded = resume(learning.config(), learning.engine, threading.Event())
    assert folded.replayed == BATCHES
    assert folded.policy.largest_difference(version_dir(learning.directory / "weights", "p", BATCHES)) == 0.0


@pytest.mark.stack
@pytest.mark.slow
def test_kill_9_at_random_moments(learning: Learning) -> None:
    for version in range(BATCHES):
        learning.add_batch(mixed(version))
    for seconds in (0.0, 0.05):
        process = spawn(learning, state_every=1)
        deadline = time.monotonic() + 60
        before = learning.one("SELECT count(*) FROM training_steps WHERE run = :run")
        while (
            learning.one("SELECT count(*) FROM training_steps WHERE run = :run") == before
            and before != (BATCHES,)
            and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
    left = BATCHES - learning.one("SELECT count(*) FROM training_steps WHERE run = :run")[0]
    if left:
        run_learner(learning.config(stop_after=left))
    check_ledger(learning)


@pytest.mark.stack
def test_sigterm_finishes_and_saves(learning: Learning) -> None:
    learning.add_batch(mixed(0))
    process = spawn(learning)
    deadline = time.monotonic() + 60
    while not learning.rows("SELECT 1 FROM training_steps WHERE run = :run") and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert state_file(learning.directory / "weights", "p", 1).exists()
    resumed = resume(learning.config(), learning.engine, threading.Event())
    assert (resumed.version, resumed.replayed) == (1, 0)


@pytest.mark.stack
@pytest.mark.parametrize("harm", ["gone", "torn", "flipped", "foreign"])
def test_a_state_that_is_not_whole_is_made_again_from_the_log(learning: Learning, harm: str) -> None:
    for version in range(3):
        learning.add_batch(mixed(version))
    run_learner(learning.config(stop_after=3, state_every=1))
    weights = learning.directory / "weights"
    newest = state_file(weights, "p", 3)
    assert resume(learning.config(), learning.engine, threading.Event()).replayed == 0
    if harm == "gone":
        for path in newest.parent.iterdir():
            path.unlink()
    elif harm == "torn":
        newest.write_bytes(newest.read_bytes()[:-1000])
    elif harm == "flipped":
        data = bytearray(newest.read_bytes())
        data[len(data) // 2] ^= 1
        newest.write_bytes(data)
    else:
        state = torch.load(newest, weights_only=True)
        write_state(newest, **{**state, "manifest_sha256": "another database's"})
    again = resume(learning.config(), learning.engine, threading.Event())
    assert (again.version, again.replayed) == (3, 3 if harm == "gone" else 1)
    assert again.policy.largest_difference(version_dir(weights, "p", 3)) == 0.0


@pytest.mark.stack
def test_moments_come_back_exactly(start_learning: Callable[..., Learning]) -> None:
    learning = start_learning()
    for version in range(2):
        learning.add_batch(mixed(version))
    run_learner(learning.config(stop_after=2, state_every=1))
    loaded = resume(learning.config(), learning.engine, threading.Event()).policy.trainer.optimizer.state_dict()
    for path in (learning.directory / "weights" / "p" / "state").iterdir():
        path.unlink()
    folded = resume(learning.config(), learning.engine, threading.Event()).policy.trainer.optimizer.state_dict()
    for one, other in zip(loaded["masters"], folded["masters"], strict=True):
        assert torch.equal(one, other)
    assert loaded["adam"]["state"].keys() == folded["adam"]["state"].keys()
    for place, moments in loaded["adam"]["state"].items():
        for name, value in moments.items():
            assert torch.equal(value, folded["adam"]["state"][place][name])
    assert loaded["adam"]["state"][0]["step"] == 2


def test_only_the_newest_states_are_kept(tmp_path: Path) -> None:
    for version in range(1, 5):
        target = state_file(tmp_path, "p", version)
        write_state(target, version=version, run="r", manifest_sha256="m", optimizer={"masters": [torch.ones(2)]})
    assert [state["version"] for state in read_states(tmp_path, "p", 4)] == [4, 3][:STATES_KEPT]
    assert [state["version"] for state in read_states(tmp_path, "p", 3)] == [3]
    assert list(read_states(tmp_path, "another", 4)) == []


def test_a_crash_while_writing_leaves_nothing_at_the_version(tmp_path: Path) -> None:
    target = version_dir(tmp_path, "p", 1)

    def fill(directory: Path) -> None:
        (directory / "model.safetensors").write_bytes(b"weights")

    def fails(point: str) -> None:
        if point == "mid_save":
            raise OSError(28, "No space left on device")

    lineage = Lineage(policy="p", version=1, parent_version=0)
    with pytest.raises(OSError, match="No space left"):
        write_version(target, lineage, fill, fault=fails)
    assert list(target.parent.iterdir()) == []
    manifest = write_version(target, lineage, fill, fault=no_fault)
    assert write_version(target, lineage, fill, fault=no_fault) == manifest


@pytest.mark.parametrize("policy", ["a/b", "..", ".hidden", "ü ber", "con%2Ftrol"])
def test_no_policy_name_leaves_the_weights_directory(tmp_path: Path, policy: str) -> None:
    names = [policy, "plain", "a%2Fb", "%2E."]
    places = {policy_dir(tmp_path, name) for name in names}
    assert len(places) == len(set(names))
    assert {place.parent for place in places} == {tmp_path}
    assert policy_dir(tmp_path, policy).resolve().parent == tmp_path.resolve()


def test_a_version_is_found_after_its_home_was_moved(tmp_path: Path) -> None:
    moved = version_dir(tmp_path / "new", "p", 3)
    moved.mkdir(parents=True)
    assert locate(str(tmp_path / "old" / "p" / "v000003"), tmp_path / "new", "p", 3) == moved
    there = tmp_path / "elsewhere"
    there.mkdir()
    assert locate(str(there), tmp_path / "new", "p", 3) == there


def test_pruning_keeps_manifests_and_clears_what_a_crash_left(tmp_path: Path) -> None:
    def fill(directory: Path) -> None:
        for name in ("model.safetensors", "config.json"):
            (directory / name).write_text("x")

    for version in range(3):
        write_version(version_dir(tmp_path, "p", version), Lineage(policy="p", version=version), fill, fault=no_fault)
    (policy_dir(tmp_path, "p") / f"{TEMPORARY}v000003").mkdir()
    assert prune(tmp_path, "p", {0, 2}) == [1]
    assert prune(tmp_path, "p", {0, 2}) == []
    assert [path.name for path in version_dir(tmp_path, "p", 1).iterdir()] == ["manifest.json"]
    assert len(list(version_dir(tmp_path, "p", 2).iterdir())) == 3
    assert list(policy_dir(tmp_path, "p").glob(f"{TEMPORARY}*")) == []
