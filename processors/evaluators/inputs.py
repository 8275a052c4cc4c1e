"""What an evaluator is shown of a turn, read from the facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from schemas.events import NextStateKind


@dataclass(frozen=True, kw_only=True)
class NextState:
    """One thing that answered the turn."""

    kind: NextStateKind
    content: str | None = None
    verdict: float | None = None
    exit_code: int | None = None


@dataclass(frozen=True, kw_only=True)
class Feedback:
    """One explicit judgement of a person; `score` in [-1, 1], None where only thumbs or a correction were given."""

    score: float | None = None
    thumbs: str | None = None
    author: str | None = None
    correction: str | None = None


@dataclass(frozen=True, kw_only=True)
class Answered:
    """What came after a turn: all that rules need. Next states by (ordinal, id), feedback by id."""

    turn_id: str
    session_id: str
    next_states: tuple[NextState, ...] = ()
    feedback: tuple[Feedback, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The turn itself. Arrays as `schemas.arrays` packs them; `messages` and `tools` as the request sent them."""

    turn_id: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    response: dict[str, Any]
    sampling: dict[str, Any]
    token_source: str
    prompt_ids: bytes
    response_ids: bytes
    response_logprobs: bytes
    finish_reason: str = "stop"


def load_answered(connection: Connection, turn_ids: Iterable[str]) -> dict[str, Answered]:
    """What answered each of the turns that are recorded."""
    wanted = {"turns": sorted(set(turn_ids))}
    states: dict[str, list[NextState]] = {}
    for row in connection.exec_driver_sql(
        "SELECT turn_id, kind, content, verdict, exit_code FROM next_states WHERE turn_id = ANY(%(turns)s) "
        "ORDER BY turn_id, ordinal, next_state_id",
        wanted,
    ):
        states.setdefault(row.turn_id, []).append(
            NextState(kind=row.kind, content=row.content, verdict=row.verdict, exit_code=row.exit_code)
        )
    feedback: dict[str, list[Feedback]] = {}
    for row in connection.exec_driver_sql(
        "SELECT turn_id, score, thumbs, author, correction FROM feedback WHERE turn_id = ANY(%(turns)s) "
        "ORDER BY turn_id, feedback_id",
        wanted,
    ):
        feedback.setdefault(row.turn_id, []).append(
            Feedback(score=row.score, thumbs=row.thumbs, author=row.author, correction=row.correction)
        )
    return {
        row.turn_id: Answered(
            turn_id=row.turn_id,
            session_id=row.session_id,
            next_states=tuple(states.get(row.turn_id, ())),
            feedback=tuple(feedback.get(row.turn_id, ())),
        )
        for row in connection.exec_driver_sql(
            "SELECT turn_id, session_id FROM turns WHERE turn_id = ANY(%(turns)s)", wanted
        )
    }


def load_turn(connection: Connection, turn_id: str) -> Turn:
    """One turn whole.

    Raises:
        NoResultFound: it is not recorded.
    """
    return Turn(**connection.exec_driver_sql(f"{_TURN} = %(turn)s", {"turn": turn_id}).mappings().one())


def load_turns(connection: Connection, turn_ids: Iterable[str]) -> dict[str, Turn]:
    """Those of the turns that are recorded, whole."""
    found = connection.exec_driver_sql(f"{_TURN} = ANY(%(turns)s)", {"turns": list(turn_ids)})
    return {row["turn_id"]: Turn(**row) for row in found.mappings()}


_TURN = """
SELECT turn_id, messages, tools, response, sampling, token_source, prompt_ids, response_ids, response_logprobs,
       finish_reason
FROM turns WHERE turn_id"""


def load_hint(connection: Connection, run: str, turn_id: str) -> str | None:
    """The run's accepted hint for the turn."""
    found: str | None = connection.exec_driver_sql(
        "SELECT text FROM hints WHERE run = %(run)s AND turn_id = %(turn)s", {"run": run, "turn": turn_id}
    ).scalar()
    return found


def replies(next_states: Sequence[NextState]) -> list[str]:
    """The texts of the user's replies, in order."""
    return [state.content for state in next_states if state.kind == "user_reply" and state.content]
