"""Versions and states on disk: whole or not at all, and a state that is not whole is made again from the log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from learner.checkpoints import TEMPORARY, clear_leftovers, locate, policy_dir, prune, version_dir, write_version
from learner.config import no_fault
from learner.fold import resume
from learner.manifest import Lineage, has_weights, problems
from learner.service import run_learner
from learner.trainer_state import STATES_KEPT, read_states, state_file, write_state
from tests.learner.learning import Learning, mixed


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
        write_state(target, version=version, run="r", manifest_sha256="m", trainer={"masters": [torch.ones(2)]})
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


def files(directory: Path) -> None:
    for name in ("model.safetensors", "config.json"):
        (directory / name).write_text("x")


def test_pruning_keeps_the_manifest(tmp_path: Path) -> None:
    target = version_dir(tmp_path, "p", 1)
    write_version(target, Lineage(policy="p", version=1), files, fault=no_fault)
    assert prune(target, fault=no_fault)
    assert not prune(target, fault=no_fault)
    assert [path.name for path in target.iterdir()] == ["manifest.json"]


def test_a_version_that_is_half_deleted_counts_as_deleted(tmp_path: Path) -> None:
    target = version_dir(tmp_path, "p", 1)
    manifest = write_version(target, Lineage(policy="p", version=1), files, fault=no_fault)

    def dies(point: str) -> None:
        raise KeyboardInterrupt(point)

    with pytest.raises(KeyboardInterrupt, match="mid_prune"):
        prune(target, fault=dies)
    assert (target / "model.safetensors").exists()  # config.json went first
    assert not has_weights(target)
    assert "has no weight files any more" in problems(target, manifest)[0]
    assert prune(target, fault=no_fault)
    assert [path.name for path in target.iterdir()] == ["manifest.json"]


def test_who_may_read_the_directory_may_read_its_files(tmp_path: Path) -> None:
    """safetensors makes files that only their owner may read."""

    def private(directory: Path) -> None:
        save_file({"w": torch.ones(2)}, directory / "model.safetensors")
        (directory / "model.safetensors").chmod(0o600)

    target = version_dir(tmp_path, "p", 1)
    write_version(target, Lineage(policy="p", version=1), private, fault=no_fault)
    for path in target.iterdir():
        assert path.stat().st_mode & 0o777 == target.stat().st_mode & 0o666


def test_what_a_crash_left_half_written_is_cleared(tmp_path: Path) -> None:
    (policy_dir(tmp_path, "p") / f"{TEMPORARY}v000003").mkdir(parents=True)
    clear_leftovers(tmp_path, "p")
    assert list(policy_dir(tmp_path, "p").iterdir()) == []
