"""Recorded turns as trajectories to score: which can be weighed, and why the others cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, text

from learner.samples import InvalidSample, TrainingSample
from schemas.arrays import unpack_floats, unpack_ids

_TURNS = text(
    """
    SELECT t.turn_id, t.session_id, t.parent_turn_id, t.kind, t.finish_reason, t.token_source, t.sampling,
           t.prompt_ids, t.response_ids, t.response_logprobs, w.value AS reward
    FROM samples s
    JOIN turns t ON t.turn_id = s.turn_id
    LEFT JOIN rewards w ON w.run = s.run AND w.turn_id = s.turn_id
    WHERE s.run = :run
    ORDER BY t.session_id, t.ordinal, t.turn_id
    """
)
_SHAPING = {"top_p": (1, 1.0, None), "top_k": (0, -1, None), "min_p": (0, 0.0, None), "temperature": (1, 1.0, None)}
"""Sampling parameters that change which token is drawn, with the values at which they do nothing."""


@dataclass(frozen=True)
class RecordedTurn:
    """One turn that can be weighed; `reward` is NaN where it has none."""

    sample: TrainingSample
    reward: float


@dataclass(frozen=True)
class Recorded:
    """`paths`: the turns of each path through a session, in order. `left_out`: sessions by the reason why one of their
    turns cannot be weighed."""

    paths: list[list[RecordedTurn]]
    left_out: dict[str, int]


def recorded_paths(connection: Connection, run: str) -> Recorded:
    """The sessions of a run as paths from their first turn to each last one; side turns are no part of them.

    A session is left out whole where a turn of it has no sampled tokens with log-probs, or was sampled with a
    temperature, top-p, top-k or min-p: the recorded log-probs are then not those that the token was drawn by.
    """
    by_session: dict[str, list[Any]] = {}
    for row in connection.execute(_TURNS, {"run": run}):
        by_session.setdefault(row.session_id, []).append(row)
    paths: list[list[RecordedTurn]] = []
    left_out: Counter[str] = Counter()
    for rows in by_session.values():
        turns = {row.turn_id: row for row in rows if row.kind == "main"}
        reasons = [reason for row in turns.values() if (reason := _why_not(row)) is not None]
        if reasons:
            left_out[reasons[0]] += 1
        elif turns:
            paths += _paths(turns)
    return Recorded(paths, dict(left_out))


def log_weights(path: Sequence[RecordedTurn], candidate: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
    """Of each turn the sum over its tokens of candidate minus recorded log-prob, float64 [turns], nats."""
    return np.array(
        [
            float((scores.astype(np.float64) - np.asarray(turn.sample.response_logprobs, np.float64)).sum())
            for turn, scores in zip(path, candidate, strict=True)
        ]
    )


def _paths(turns: dict[str, Any]) -> list[list[RecordedTurn]]:
    parents = {row.parent_turn_id for row in turns.values()}
    made = {turn_id: _turn(row) for turn_id, row in turns.items()}
    paths = []
    for leaf in (turn_id for turn_id in turns if turn_id not in parents):
        path, seen = [], set[str]()
        here: str | None = leaf
        while here is not None and here in turns and here not in seen:
            seen.add(here)
            path.append(made[here])
            here = turns[here].parent_turn_id
        paths.append(path[::-1])
    return paths


def _turn(row: Any) -> RecordedTurn:
    return RecordedTurn(_sample(row), float("nan") if row.reward is None else float(row.reward))


def _sample(row: Any) -> TrainingSample:
    return TrainingSample(
        sample_id=row.turn_id,
        prompt_ids=unpack_ids(row.prompt_ids),
        response_ids=unpack_ids(row.response_ids),
        response_logprobs=unpack_floats(row.response_logprobs),
    )


def _why_not(row: Any) -> str | None:
    if row.finish_reason in ("aborted", "error"):
        return "a turn was aborted or failed"
    if row.token_source != "engine":
        return "a turn has no sampled tokens"
    try:
        _sample(row).check()
    except InvalidSample as err:
        return f"a turn has {err.reason}"
    shaped = [name for name, neutral in _SHAPING.items() if name in row.sampling and row.sampling[name] not in neutral]
    return f"a turn was sampled with {shaped[0]}" if shaped else None
