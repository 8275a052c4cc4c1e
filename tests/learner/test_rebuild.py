"""A version made again from the log is the same to the byte, and one that was tampered with is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from learner.checkpoints import policy_dir, version_dir
from learner.errors import LearnerStopped
from learner.manifest import file_entries, result_files
from learner.rebuild import BOUND, Rebuilt, rebuild
from learner.service import run_learner
from schemas.recipes import recipe_named
from tests.learner.learning import Learning, mixed

pytestmark = pytest.mark.stack


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """Some tests here train on two threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def train(learning: Learning, count: int = 3, **more: Any) -> None:
    for version in range(count):
        learning.add_batch(mixed(version), send=False)
    learning.send()
    run_learner(learning.config(stop_after=count, **more))


def again(learning: Learning, version: int, config: dict[str, Any] | None = None, **more: Any) -> Rebuilt:
    return rebuild(learning.config(**(config or {})), learning.engine, threading.Event(), version, **more)


@pytest.mark.parametrize("publish", ["full", "delta", "adapter"])
def test_every_version_comes_out_the_same(
    start_learning: Callable[..., Learning], publish: str, tmp_path: Path
) -> None:
    overrides = {"judge": {"votes": 0}, "optimizer": {"lr": 1e-2}, "lora": {"rank": 2}}
    learning = start_learning(recipe=recipe_named("binary-rl", overrides)) if publish == "adapter" else start_learning()
    train(learning, publish=publish, state_every=2)
    before = learning.rows("SELECT * FROM weight_versions ORDER BY version")
    for version, begin in ((1, 0), (2, 0), (3, 2)):
        done = again(learning, version, keep=tmp_path / f"again{version}")
        assert (done.begin, done.same, done.accepted, done.deviation, done.elsewise) == (begin, True, True, 0.0, [])
        (manifest,) = learning.one("SELECT manifest FROM weight_versions WHERE version = :version", version=version)
        assert file_entries(tmp_path / f"again{version}") == result_files(manifest)
    assert again(learning, 3, from_base=True).begin == 0
    assert again(learning, 3, from_base=True).same
    assert learning.rows("SELECT * FROM weight_versions ORDER BY version") == before
    assert not [path for path in policy_dir(learning.directory / "weights", "p").rglob(".*") if path.name != ".lock"]


def test_versions_whose_files_are_deleted_are_made_again_too(learning: Learning, tmp_path: Path) -> None:
    train(learning, 4, keep_last=2)
    assert not list(version_dir(learning.directory / "weights", "p", 1).glob("*.safetensors"))
    assert again(learning, 1, keep=tmp_path / "again").same
    assert (tmp_path / "again" / "model.safetensors").is_file()


def test_each_step_is_taken_with_as_many_threads_as_the_first_time(learning: Learning) -> None:
    """One step on one thread, two on two; made again by a process that is told three, and other sizes."""
    train(learning, 1, threads=1, dtype="float32")
    for version in (1, 2):
        learning.add_batch(mixed(version))
    run_learner(learning.config(stop_after=2, threads=2, dtype="float32"))
    torch.set_num_threads(3)
    done = again(learning, 3, {"threads": 3, "dtype": "bfloat16", "tokens_per_forward": 64}, from_base=True)
    assert (done.same, done.elsewise) == (True, [])
    assert torch.get_num_threads() == 3


def test_what_differs_is_named(learning: Learning) -> None:
    train(learning, 2)
    learning.execute(
        "UPDATE weight_versions SET manifest = jsonb_set(jsonb_set(manifest, '{made_on,torch}', '\"2.0\"'), "
        "'{made_on,device}', '\"NVIDIA H200\"') WHERE version = 1"
    )
    done = again(learning, 2, from_base=True)
    assert done.same
    assert done.elsewise == [
        "device NVIDIA H200 then, cpu now",
        f"torch 2.0 then, {torch.__version__} now",
    ]


def nudge(learning: Learning, version: int, by: float) -> None:
    """Move every weight of a version by `by` of its way from version 0, as another kernel's rounding would; and have
    its manifest name the file that comes out."""
    weights = learning.directory / "weights"
    path = version_dir(weights, "p", version) / "model.safetensors"
    base = load_file(version_dir(weights, "p", 0) / "model.safetensors")
    stored = load_file(path)
    moved = {
        name: (tensor.float() + by * (tensor.float() - base[name].float())).to(tensor.dtype)
        for name, tensor in stored.items()
    }
    save_file(moved, path, metadata={"format": "pt"})
    entry = file_entries(path.parent)["model.safetensors"]
    learning.execute(
        "UPDATE weight_versions SET manifest = jsonb_set(manifest, '{files,model.safetensors}', CAST(:entry AS jsonb)) "
        "WHERE version = :version",
        entry=f'{{"sha256": "{entry["sha256"]}", "bytes": {entry["bytes"]}}}',
        version=version,
    )


@pytest.mark.parametrize(("by", "device", "accepted"), [(0.02, "GPU", True), (0.2, "GPU", False), (0.02, "cpu", False)])
def test_how_far_off_is_accepted_depends_on_the_device(
    learning: Learning, by: float, device: str, accepted: bool
) -> None:
    """Equal bytes are expected on a CPU; a version of another device may be off by `BOUND`."""
    train(learning, 2, dtype="float32")
    nudge(learning, 2, by)
    learning.execute(
        "UPDATE weight_versions SET manifest = jsonb_set(manifest, '{made_on,device}', CAST(:device AS jsonb)) "
        "WHERE version = 2",
        device=f'"{device}"',
    )
    done = again(learning, 2, from_base=True)
    assert done.deviation == pytest.approx(by / (1 + by), rel=0.05)
    assert (done.same, done.accepted) == (False, accepted)
    assert (done.deviation <= BOUND) == (by < 0.1)


def test_other_rounding_stays_within_the_bound(learning: Learning) -> None:
    """Forward passes of another size add gradients in another order, as another kernel does: that is within the bound;
    without one of its micro-batches a version is not."""
    train(learning, 4, tokens_per_forward=4096)
    learning.execute("UPDATE weight_versions SET manifest = manifest #- '{made_on,tokens_per_forward}'")
    other = again(learning, 4, {"tokens_per_forward": 16}, from_base=True)
    assert other.elsewise == ["tokens_per_forward None then, 16 now"]
    assert other.deviation is not None
    print(f"deviation by rounding: {other.deviation:.4%}")
    assert (other.same, other.accepted) == (False, True)
    learning.execute("UPDATE samples SET state = 'dropped', drop_reason = 'stale' WHERE position = 3")
    fewer = again(learning, 4, from_base=True)
    assert fewer.deviation is not None
    print(f"deviation without every fourth sample: {fewer.deviation:.2%}")
    assert not fewer.accepted
    assert fewer.deviation > 3 * BOUND


def test_a_mistake_is_told(learning: Learning, tmp_path: Path) -> None:
    train(learning, 1)
    for version, more, says in (
        (0, {}, "there is no version 0 to be made"),
        (2, {}, "versions 0 to 1"),
        (1, {"keep": tmp_path}, "exists already"),
    ):
        with pytest.raises(LearnerStopped, match=says):
            again(learning, version, **more)
    learning.execute("UPDATE rewards SET value = -value")
    with pytest.raises(LearnerStopped, match="was changed after it became ready"):
        again(learning, 1)
