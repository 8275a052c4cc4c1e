"""Shares of a micro-batch, parts of a state, and how a process is told that it is one of several."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from hindstream.errors import UserError
from hindstream.settings import torchrun_ranks
from learner.collate import plan_forwards
from learner.config import RanksConfig
from learner.errors import LearnerStopped
from learner.ranks import EMPTY, ranks_joined, share
from learner.sharding import recut
from learner.trainer_state import read_states, read_trainer, state_file, write_part, write_state
from tests.learner.tiny import make_sample


def parts_of(whole: torch.Tensor, ranks: int) -> list[torch.Tensor]:
    """As FSDP2 cuts: pieces of the same size, the last ones smaller or empty."""
    size = -(-len(whole) // ranks)
    return [whole[place * size : (place + 1) * size] for place in range(ranks)]


@pytest.mark.parametrize("length", [1, 2, 5, 7, 12])
def test_a_state_cut_anew_is_the_whole_cut_at_once(length: int) -> None:
    whole = torch.arange(3.0 * length).reshape(length, 3)
    for saved in (1, 2, 3, 4):
        state = [
            {"masters": [part, part[:, 0]], "adam": {"step": torch.tensor(9.0), "lr": 0.1, "betas": (0.9, 0.95)}}
            for part in parts_of(whole, saved)
        ]
        for ranks in (1, 2, 3, 5):
            for rank, expected in enumerate(parts_of(whole, ranks)):
                found = recut(state, rank, ranks)
                assert torch.equal(found["masters"][0], expected)
                assert torch.equal(found["masters"][1], expected[:, 0])
                assert found["adam"] == {"step": 9.0, "lr": 0.1, "betas": (0.9, 0.95)}


def shares(monkeypatch: pytest.MonkeyPatch, forwards: list[Any], ranks: int) -> list[list[Any]]:
    monkeypatch.setattr("learner.ranks.world_size", lambda: ranks)
    found = []
    for rank in range(ranks):
        monkeypatch.setattr("learner.ranks.rank", lambda rank=rank: rank)
        found.append(share(forwards))
    return found


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_every_pass_is_one_ranks_and_all_ranks_have_as_many(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    forwards = plan_forwards([make_sample(seed, response=1 + seed) for seed in range(7)], 1)
    found = shares(monkeypatch, forwards, ranks)
    assert {len(mine) for mine in found} == {-(-7 // ranks)}
    real = [forward for mine in found for forward in mine if forward is not EMPTY]
    assert sorted(map(id, real)) == sorted(map(id, forwards))
    side_by_side = [[forward.input_ids.shape[1] for forward in each] for each in zip(*found, strict=True)]
    for before, after in pairwise(side_by_side):
        assert min(before) >= max(after)


def test_a_micro_batch_without_a_pass_has_none_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shares(monkeypatch, [], 3) == [[], [], []]


def save(weights: Path, version: int, saving: str = "a") -> Path:
    target = state_file(weights, "p", version)
    for rank in (1, 2):
        write_part(target, rank, 3, saving, {"masters": [torch.full((1, 2), float(rank))]})
    first = {"masters": [torch.zeros(1, 2)]}
    write_state(target, version=version, run="r", manifest_sha256="m", trainer=first, ranks=3, saving=saving)
    return target


def test_a_state_of_parts_is_read_whole_and_the_oldest_go_with_their_parts(tmp_path: Path) -> None:
    for version in (1, 2, 3):
        target = save(tmp_path, version)
    assert {path.name for path in target.parent.iterdir()} == {
        f"v{version:06d}.pt{part}" for version in (2, 3) for part in ("", ".1of3", ".2of3")
    }
    assert [state["version"] for state in read_states(tmp_path, "p", 3)] == [3, 2]
    assert read_trainer(target)["masters"][0].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert read_trainer(target, 1, 2)["masters"][0].tolist() == [[2, 2]]
    assert read_trainer(target, 2, 3)["masters"][0].tolist() == [[2, 2]]


def lose(part: Path) -> None:
    part.unlink()


def tear(part: Path) -> None:
    part.write_bytes(part.read_bytes()[:-100])


def mix(part: Path) -> None:
    """As where a kill came between two ranks that saved the same version again."""
    write_part(part.with_suffix(""), 2, 3, "b", {"masters": [torch.zeros(1, 2)]})


@pytest.mark.parametrize("harm", [lose, tear, mix])
def test_a_state_with_a_part_that_is_not_its_own_is_passed_over(tmp_path: Path, harm: Any) -> None:
    save(tmp_path, 1)
    target = save(tmp_path, 2)
    harm(target.with_name(f"{target.name}.2of3"))
    assert [state["version"] for state in read_states(tmp_path, "p", 2)] == [1]


def test_one_process_that_saves_the_version_again_leaves_no_parts(tmp_path: Path) -> None:
    target = save(tmp_path, 1)
    write_state(target, version=1, run="r", manifest_sha256="m", trainer={"masters": [torch.ones(3, 2)]})
    assert list(target.parent.iterdir()) == [target]
    assert read_trainer(target, 2, 3)["masters"][0].tolist() == [[1, 1]]


def test_ranks_that_name_one_gpu_for_all_are_refused() -> None:
    config = RanksConfig(rank=0, local_rank=0, world_size=2)
    refused = pytest.raises(LearnerStopped, match="2 ranks cannot all use cuda:1: set HINDSTREAM_LEARNER__DEVICE to")
    with refused, ranks_joined(config, "cuda:1"):
        pass


TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}


def test_torchruns_variables_say_which_rank_this_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    assert torchrun_ranks() is None
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert torchrun_ranks() == (3, 1, 4)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert torchrun_ranks() is None


@pytest.mark.parametrize(("name", "value"), [("RANK", None), ("LOCAL_RANK", None), ("WORLD_SIZE", "many")])
def test_half_of_torchruns_variables_are_a_mistake_that_is_told(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str | None
) -> None:
    for each, given in (TORCHRUN | {name: value}).items():
        if given is None:
            monkeypatch.delenv(each, raising=False)
        else:
            monkeypatch.setenv(each, given)
    with pytest.raises(UserError, match=value or name):
        torchrun_ranks()
