"""What learning did to answers that neither run trained: log-prob gained on liked ones, lost on disliked ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from hindstream.errors import UserError
from hindstream.scoring import score_by_version
from hindstream.settings import Settings
from learner.samples import InvalidSample, TrainingSample
from schemas.arrays import unpack_floats, unpack_ids


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Mean log-prob a token under a run's last version minus that under version 0, nats; over answers with a reward of
    +1 and of -1. None where there is none."""

    version: int
    liked: float | None
    disliked: float | None


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Gains of both runs on the same turns: `liked` and `disliked` of them. A run without a weight version has None."""

    liked: int
    disliked: int
    gains: dict[str, Gain | None]


_TURNS = """
SELECT t.turn_id, t.prompt_ids, t.response_ids, t.response_logprobs, coalesce(wa.value, wb.value) AS reward
FROM samples a
JOIN samples b ON b.turn_id = a.turn_id AND b.run = %(b)s
JOIN turns t ON t.turn_id = a.turn_id
LEFT JOIN rewards wa ON wa.run = a.run AND wa.turn_id = a.turn_id
LEFT JOIN rewards wb ON wb.run = b.run AND wb.turn_id = b.turn_id
WHERE a.run = %(a)s AND a.state <> 'trained' AND b.state <> 'trained' AND t.token_source = 'engine'
  AND coalesce(wa.value, wb.value) IN (1, -1)
ORDER BY md5(t.turn_id), t.turn_id
LIMIT %(limit)s
"""
"""In an order that is random and always the same. Where the runs disagree the first one's reward counts."""
_LAST = "SELECT max(version) FROM weight_versions WHERE run = %(run)s"


def held_out(connection: Connection, settings: Settings, a: str, b: str, limit: int) -> HeldOut:
    """Gains on up to `limit` turns.

    Raises:
        UserError: there is no such turn, or a version's weight files are gone.
    """
    rows = connection.exec_driver_sql(_TURNS, {"a": a, "b": b, "limit": limit}).all()
    pairs = [(sample, row.reward) for row in rows if (sample := _sample(row)) is not None]
    if not pairs:
        raise UserError(
            f"no turn of both {a!r} and {b!r} has a reward and sampled tokens and was trained by neither: "
            "replay with --sample and leave some out"
        )
    samples = [sample for sample, _ in pairs]
    likes = np.array([reward > 0 for _, reward in pairs])
    gains = {run: _gain(connection, settings, run, samples, likes) for run in (a, b)}
    return HeldOut(liked=int(likes.sum()), disliked=int((~likes).sum()), gains=gains)


def _gain(
    connection: Connection, settings: Settings, run: str, samples: Sequence[TrainingSample], likes: NDArray[np.bool_]
) -> Gain | None:
    version = connection.exec_driver_sql(_LAST, {"run": run}).scalar_one()
    if version is None:
        return None
    policy = connection.exec_driver_sql("SELECT policy FROM runs WHERE run = %(run)s", {"run": run}).scalar_one()
    before, after = (score_by_version(connection, settings, policy, one, samples) for one in (0, version))
    by_turn = np.array([float((new - old).mean()) for old, new in zip(before, after, strict=True)])

    def mean(which: NDArray[np.bool_]) -> float | None:
        return float(by_turn[which].mean()) if which.any() else None

    return Gain(version=version, liked=mean(likes), disliked=mean(~likes))


def _sample(row: Any) -> TrainingSample | None:
    sample = TrainingSample(
        sample_id=row.turn_id,
        prompt_ids=unpack_ids(row.prompt_ids),
        response_ids=unpack_ids(row.response_ids),
        response_logprobs=unpack_floats(row.response_logprobs),
    )
    try:
        sample.check()
    except InvalidSample:
        return None
    return sample
