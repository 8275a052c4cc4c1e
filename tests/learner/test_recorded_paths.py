"""Which recorded sessions can be weighed, as paths, and why the others cannot."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from sqlalchemy import text

from learner.recorded import Recorded, log_weights, recorded_paths
from schemas.events import Tokens
from tests.processors.conversations import Recording, turn

pytestmark = pytest.mark.stack


@pytest.fixture
def recording(migrated_database_url: str) -> Recording:
    return Recording(migrated_database_url)


def paths(recording: Recording) -> Recorded:
    with recording.engine.connect() as connection:
        return recorded_paths(connection, "live")


def names(recorded: Recorded) -> list[list[str]]:
    return sorted([one.sample.sample_id for one in path] for path in recorded.paths)


def reward(recording: Recording, turn_id: str, value: float) -> None:
    with recording.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO rewards (run, turn_id, status, value, annotator_kind, votes_valid, votes_total) "
                "VALUES ('live', :turn, 'scored', :value, 'CODE', 1, 1)"
            ),
            {"turn": turn_id, "value": value},
        )


def test_a_session_is_a_tree_and_each_leaf_ends_a_path(recording: Recording) -> None:
    recording.record(
        turn("a", ordinal=0),
        turn("b", parent="a", ordinal=1),
        turn("c", parent="b", ordinal=2),
        turn("b2", parent="a", ordinal=1),
        turn("aside", parent="a", ordinal=1, kind="side"),
        turn("z", session="other", ordinal=0),
    )
    reward(recording, "c", -1.0)
    found = paths(recording)
    assert names(found) == [["a", "b", "c"], ["a", "b2"], ["z"]]
    (path,) = [path for path in found.paths if path[-1].sample.sample_id == "c"]
    assert math.isnan(path[0].reward)
    assert path[2].reward == -1.0
    same = [one.sample.response_logprobs + np.float32(0.5) for one in path]
    assert log_weights(path, same) == pytest.approx([1.5, 1.5, 1.5])


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"sampling": {"temperature": 0.7}}, "sampled with temperature"),
        ({"sampling": {"top_p": 0.9}}, "sampled with top_p"),
        ({"sampling": {"top_k": 40}}, "sampled with top_k"),
        ({"finish_reason": "aborted"}, "aborted or failed"),
        (
            {"tokens": Tokens(source="retokenised", prompt_ids=[1], response_ids=[2], response_logprobs=[-1.0])},
            "no sampled",
        ),
        (
            {"tokens": Tokens(source="engine", prompt_ids=[1], response_ids=[2, 3], response_logprobs=[-1.0])},
            "mismatch",
        ),
        ({"tokens": Tokens(source="engine", prompt_ids=[], response_ids=[2], response_logprobs=[-1.0])}, "no_tokens"),
    ],
)
def test_a_session_with_a_turn_that_cannot_be_weighed_is_left_out_whole(
    recording: Recording, more: dict[str, Any], reason: str
) -> None:
    recording.record(turn("a", ordinal=0), turn("b", parent="a", ordinal=1, **more), turn("z", session="other"))
    found = paths(recording)
    assert names(found) == [["z"]]
    ((said, count),) = found.left_out.items()
    assert reason in said
    assert count == 1


def test_parameters_that_change_nothing_leave_nothing_out(recording: Recording) -> None:
    recording.record(turn("a", sampling={"temperature": 1.0, "top_p": 1, "top_k": -1, "max_tokens": 5, "seed": 3}))
    assert names(paths(recording)) == [["a"]]
