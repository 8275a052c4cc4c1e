"""A learner of several ranks on a real log: the versions of one, through deaths and other numbers of ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from hindstream.stack.ports import choose
from learner.checkpoints import version_dir
from learner.fold import resume
from learner.rebuild import rebuild
from tests.learner.learner_process import DIED
from tests.learner.learning import Learning, mixed
from tests.learner.ranks_of import Ranks
from tests.learner.test_cli import environment_of

pytestmark = pytest.mark.stack

SETTINGS: dict[str, Any] = {"dtype": "float32", "tokens_per_forward": 16, "state_every": 2}


def ends(ranks: Ranks, learning: Learning, count: int, *, dies: list[int] | None = None, **more: Any) -> list[int]:
    """Run the learner on `count` ranks; how each ended."""
    config = asdict(learning.config(**SETTINGS | more))
    plain = {name: value for name, value in config.items() if name not in ("fault", "ranks")}
    return ranks.ends("learner", count, config=plain, dies=dies)


def batches(learning: Learning, count: int) -> None:
    first = learning.seq
    for version in range(first, first + count):
        learning.add_batch(mixed(version, 5), send=False)
    learning.send()


def steps(learning: Learning) -> list[tuple[int, int]]:
    return [tuple(row) for row in learning.rows("SELECT step, version FROM training_steps ORDER BY step")]


@pytest.fixture(scope="module")
def versions() -> dict[int, str]:
    """What two ranks that nobody kills make, filled by the first test."""
    return {}


def test_two_ranks_make_versions_that_one_process_can_load_verify_and_go_on_from(
    learning: Learning, ranks: Ranks, versions: dict[int, str]
) -> None:
    batches(learning, 3)
    assert ends(ranks, learning, 2, stop_after=3) == [0, 0]
    assert steps(learning) == [(1, 1), (2, 2), (3, 3)]
    versions |= learning.weights()
    loaded = AutoModelForCausalLM.from_pretrained(version_dir(learning.directory / "weights", "p", 3))
    assert type(loaded).__name__ == "LlamaForCausalLM"

    alone, stop = learning.config(**SETTINGS), threading.Event()
    again = rebuild(alone, learning.engine, stop, 3, from_base=True)
    assert again.elsewise == ["ranks 2 then, 1 now"]
    assert again.accepted
    assert again.deviation is not None
    assert again.deviation < 1e-3
    taken_up = resume(alone, learning.engine, stop)
    assert (taken_up.version, taken_up.replayed) == (3, 0)

    batches(learning, 2)
    assert ends(ranks, learning, 3, stop_after=1) == [0, 0, 0]
    assert ends(ranks, learning, 1, stop_after=1) == [0]
    assert steps(learning) == [(version, version) for version in range(1, 6)]
    query = "SELECT manifest->'made_on'->'ranks' FROM weight_versions WHERE version > 0 ORDER BY version"
    assert learning.rows(query) == [(2,), (2,), (2,), (3,), (1,)]


@pytest.mark.parametrize("dies", [0, 1])
def test_a_rank_that_dies_ends_all_and_a_restart_makes_the_same_versions(
    learning: Learning, ranks: Ranks, versions: dict[int, str], dies: int
) -> None:
    batches(learning, 3)
    found = ends(ranks, learning, 2, dies=[dies, 6], stop_after=3)
    assert found[dies] == DIED
    assert found[1 - dies] == 1
    done = len(steps(learning))
    assert done in (1, 2)
    assert ends(ranks, learning, 2, stop_after=3 - done) == [0, 0]
    assert steps(learning) == [(1, 1), (2, 2), (3, 3)]
    assert learning.one("SELECT trained, dropped, balance FROM ledger WHERE run = :run") == (15, 0, 0)
    assert learning.weights() == versions


def test_the_command_finds_its_rank_where_torchrun_puts_it(
    start_learning: Callable[..., Learning], ranks: Ranks
) -> None:
    learning = start_learning()
    batches(learning, 1)
    arguments = ["run", "--stop-after", "1"]
    environment = environment_of(learning)
    found = ranks.ends("command", 2, environment=environment, arguments=arguments, port=choose())
    assert found == [0, 0]
    assert learning.one("SELECT manifest->'made_on'->'ranks' FROM weight_versions WHERE version = 1") == (2,)
