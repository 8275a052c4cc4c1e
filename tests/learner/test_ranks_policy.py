"""A policy that is cut among ranks is written, kept and taken up again as one that is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from learner.config import RanksConfig
from learner.trainer_state import read_trainer
from tests.learner import rank_jobs
from tests.learner.ranks_of import Ranks
from tests.learner.tiny import tiny_model

ALONE = RanksConfig(rank=0, local_rank=0, world_size=1)
STATE = Path("state") / "v000001.pt"
ADAPTED = {"lora": {"rank": 3}, "loss": {"kl_coefficient": 0.1}}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory."""
    directory = tmp_path_factory.mktemp("model") / "base"
    tiny_model().save_pretrained(directory)
    (directory / "tokenizer.json").write_text("{}")
    return directory


def close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """The same names, shapes and dtypes, and values as near as sums of another order give them."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("name", "story"),
    [
        ("grpo", {"recompute": True}),
        ("grpo", {"more": ADAPTED}),
        ("grpo", {"more": ADAPTED, "then": {"lora": {"rank": 2}, "loss": {"kl_coefficient": 0.1}}}),
        ("ppo", {"more": {"critic": {"kind": "model"}}}),
        ("sdpo", {}),
    ],
)
def test_what_ranks_write_and_keep_is_what_one_does(
    ranks: Ranks, base: Path, tmp_path: Path, name: str, story: dict[str, Any]
) -> None:
    said = {}
    for count in (1, 2):
        whole = {"base": base, "place": tmp_path / str(count), "recipe": name, "seeds": [1, 9], **story}
        said[count] = rank_jobs.policy(ALONE, **whole) if count == 1 else ranks.result("policy", count, **whole)
    one, two = tmp_path / "1", tmp_path / "2"
    assert said[2] == said[1]
    assert said[2]["difference"] == 0.0
    files = {path.relative_to(one) for path in one.rglob("*") if path.is_file()}
    assert {path.relative_to(two) for path in two.rglob("*") if path.is_file()} == files | {
        STATE.with_name("v000001.pt.1of2")
    }
    for file in files - {STATE}:
        if file.suffix == ".safetensors":
            close(load_file(two / file), load_file(one / file))
        else:
            assert (two / file).read_bytes() == (one / file).read_bytes(), file
    loaded: Any = AutoModelForCausalLM.from_pretrained(two / "version")
    assert type(loaded).__name__ == json.loads((base / "config.json").read_text())["architectures"][0]
    same_trainer(read_trainer(two / STATE), read_trainer(one / STATE))


def same_trainer(found: Any, expected: Any) -> None:
    """States of the same structure, with values as near as sums of another order give them."""
    if isinstance(expected, Tensor):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            same_trainer(found[key], expected[key])
    elif isinstance(expected, list):
        for one, other in zip(found, expected, strict=True):
            same_trainer(one, other)
    else:
        assert found == expected


def test_in_bfloat16_gradients_are_summed_over_ranks_in_float32(ranks: Ranks, base: Path, tmp_path: Path) -> None:
    """What is left is the rounding of each pass's own gradient."""
    for count in (1, 3):
        story = {"base": base, "place": tmp_path / str(count), "recipe": "grpo", "seeds": [1], "dtype": "bfloat16"}
        assert ranks.result("policy", count, **story)["difference"] == 0.0
    one, three = (read_trainer(tmp_path / count / STATE)["optimizer"]["adam"]["state"] for count in ("1", "3"))
    assert one.keys() == three.keys()
    apart, size = 0.0, 0.0
    for place, moments in one.items():
        apart += float((three[place]["exp_avg"] - moments["exp_avg"]).square().sum())
        size += float(moments["exp_avg"].square().sum())
    assert apart <= (0.01**2) * size


def test_a_state_is_taken_up_by_another_number_of_ranks(ranks: Ranks, base: Path, tmp_path: Path) -> None:
    story = {"base": base, "recipe": "ppo"}
    ranks.result("policy", 2, place=tmp_path / "2", seeds=[1], **story)
    for count in (1, 2, 3):
        ranks.result("policy", count, place=tmp_path / f"2to{count}", seeds=[9], load=tmp_path / "2" / STATE, **story)
    expected = read_trainer(tmp_path / "2to2" / STATE)
    for count in (1, 3):
        same_trainer(read_trainer(tmp_path / f"2to{count}" / STATE), expected)
        close(*(load_file(tmp_path / f"2to{n}" / "version" / "model.safetensors") for n in (count, 2)))


def test_a_part_that_cannot_be_written_leaves_no_state_and_stops_nobody(
    ranks: Ranks, base: Path, tmp_path: Path
) -> None:
    story = {"base": base, "place": tmp_path / "p", "recipe": "grpo", "seeds": [1]}
    said = ranks.result("policy", 2, in_the_way="v000001.pt.1of2", **story)
    assert said["refused"].startswith("1 of 2 ranks could not write their part of")
    assert said["difference"] == 0.0
    assert not (tmp_path / "p" / STATE).exists()
