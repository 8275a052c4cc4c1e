"""A step on two and three ranks is the step on one: the same gradient, metrics and weights under every preset."""

from __future__ import annotations

import math
from typing import Any

import pytest

from learner.config import RanksConfig
from schemas.recipes import PRESETS
from tests.learner import rank_jobs
from tests.learner.ranks_of import Ranks

ALONE = RanksConfig(rank=0, local_rank=0, world_size=1)


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Any]]:
    """Every preset's step on one rank."""
    return rank_jobs.gradients(ALONE)


def numbers(step: dict[str, Any]) -> dict[str, float]:
    """Its metrics, NaN where there is no number."""
    return {name: math.nan if value is None else value for name, value in step["metrics"].items()}


@pytest.mark.parametrize(
    ("count", "names"), [(2, list(PRESETS)), (3, ["combine", "grpo", "ppo", "sdpo"])], ids=["2", "3"]
)
def test_a_step_is_the_same_on_any_number_of_ranks(
    ranks: Ranks, alone: dict[str, Any], count: int, names: list[str]
) -> None:
    """Two for every preset, three for those that differ in what is asked beside the policy."""
    together = ranks.result("gradients", count, names=names)
    assert list(together) == names
    for name, found in together.items():
        expected = alone[name]
        assert expected["gradient"], name
        assert (found["skipped"], found["silent"]) == (expected["skipped"], expected["silent"]), name
        assert numbers(found) == pytest.approx(numbers(expected), rel=1e-5, abs=1e-6, nan_ok=True), name
        for kind, bound in (("gradient", 1e-6), ("weights", 1e-4)):
            assert found[kind].keys() == expected[kind].keys()
            for weight, whole in expected[kind].items():
                apart = float((found[kind][weight] - whole).abs().max())
                assert apart <= bound * max(1.0, float(whole.norm())), (name, kind, weight, apart)
