"""The served teacher's scores as the loss looks them up: its own likeliest, and those that the policy named."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from learner.advantages.topk import scores_at
from learner.batches import _teacher_entries
from schemas.arrays import pack_floats, pack_ids

LIKELIEST = [[5, 6], [7, 8]]
SCORES = [[-0.5, -1.0], [-0.25, -2.0]]


def row(named: list[list[int]], scores: list[list[float]]) -> SimpleNamespace:
    return SimpleNamespace(
        top_k=2,
        topk_ids=pack_ids(np.asarray(LIKELIEST).ravel()),
        topk_logprobs=pack_floats(np.asarray(SCORES, np.float32).ravel()),
        student_k=len(named[0]),
        student_ids=pack_ids(np.asarray(named).ravel()),
        student_logprobs=pack_floats(np.asarray(scores, np.float32).ravel()),
    )


def found(named: list[list[int]], scores: list[list[float]], wanted: list[list[int]]) -> list[list[float]]:
    ids, values = _teacher_entries(row(named, scores))
    at = scores_at(torch.from_numpy(ids.astype("int64")), torch.from_numpy(values), torch.tensor(wanted))
    return [[round(float(value), 4) for value in place] for place in at]


def test_an_entry_counts_once_whoever_named_it() -> None:
    assert found([[6, 9], [7, 3]], [[-1.0, -4.0], [-0.25, -6.0]], [[6, 9, 5], [7, 3, 8]]) == [
        [-1.0, -4.0, -0.5],
        [-0.25, -6.0, -2.0],
    ]


def test_a_score_that_is_not_known_stays_unknown_and_spoils_no_other() -> None:
    (first, second) = found([[6, 9], [4, 3]], [[float("nan"), float("nan")], [-3.0, float("nan")]], [[6, 9], [4, 3]])
    assert first[0] == -1.0
    assert np.isnan(first[1])
    assert second[0] == -3.0
    assert np.isnan(second[1])


def test_an_impossible_token_is_a_score() -> None:
    assert found([[9], [3]], [[float("-inf")], [-6.0]], [[9], [3]]) == [[float("-inf")], [-6.0]]


def test_a_row_without_named_ids_is_as_before() -> None:
    plain = SimpleNamespace(**{**vars(row([[9], [3]], [[-4.0], [-6.0]])), "student_ids": None})
    ids, values = _teacher_entries(plain)
    assert ids.tolist() == LIKELIEST
    assert values.tolist() == SCORES
