"""Pairs of a turn and what answered it, with the outcome that is right: what judges are measured by.

Written for this project. Every kind of next state has as many good, bad and neutral pairs; `about` says what a pair is,
and many are there because they mislead: a wish that sounds like praise, a result that mentions errors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from processors.evaluators.inputs import Answered, NextState, Turn
from processors.evaluators.prompts import LABELS
from schemas.events import NextStateKind

FILE = Path(__file__).parent / "pairs.jsonl"
Label = Literal["good", "bad", "neutral"]


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call; `arguments` as the model wrote them."""

    name: str
    arguments: str


class Pair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One labelled pair."""

    id: str
    kind: NextStateKind
    label: Label
    about: str
    asked: str
    answered: str
    observed: str
    call: Call | None = None
    verdict: float | None = None
    exit_code: int | None = None

    @property
    def score(self) -> int:
        """The label as a vote: +1, 0 or -1."""
        return LABELS[self.label]

    def next_states(self) -> Answered:
        """What answered the turn."""
        state = NextState(kind=self.kind, content=self.observed, verdict=self.verdict, exit_code=self.exit_code)
        return Answered(turn_id=self.id, session_id=self.id, next_states=(state,))

    def turn(self) -> Turn:
        """The turn, without tokens."""
        response = {"content": self.answered, "tool_calls": [msgspec.to_builtins(self.call)] if self.call else []}
        return Turn(
            turn_id=self.id,
            messages=[{"role": "user", "content": self.asked}],
            tools=[],
            response=response,
            sampling={},
            token_source="none",
            prompt_ids=b"",
            response_ids=b"",
            response_logprobs=b"",
        )


def pairs(file: Path = FILE) -> list[Pair]:
    """The pairs of a JSON Lines file, in its order.

    Raises:
        ValueError: a line is no pair: which line, what is wrong with it.
    """
    found = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found.append(msgspec.json.decode(line, type=Pair))
        except msgspec.DecodeError as err:
            raise ValueError(f"{file}, line {number}: {err}") from err
    return found
