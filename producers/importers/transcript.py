"""One agent session as a tree of places, from which turns, requests and next states follow by the same rules in every
format.

A reader walks the rows of its log and says at which place of the conversation each stands; a place knows all that was
said on the way to it. Only when the whole log is known are events made of it, because a later row may tell that an
answer was cut off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from producers.importers.answers import assistant_message
from producers.importers.base import SessionDraft, Unreadable
from producers.importers.place import Message, Place
from schemas.envelope import Event
from schemas.events import FinishReason, NextStateKind, Response, TurnKind


@dataclass
class _Turn:
    asked: Place
    response: Response
    finish_reason: FinishReason
    policy: str
    line: int
    kind: TurnKind
    tools: list[dict[str, Any]]
    sampling: dict[str, Any]
    ended_at: str | None
    call_ids: frozenset[str]
    states: list[dict[str, Any]] = field(default_factory=list)


class Transcript:
    """Collects the rows of one session.

    Args:
        source, session_id, format_name, file: as `SessionDraft` takes them.
    """

    def __init__(self, *, source: str, session_id: str, format_name: str, file: str) -> None:
        self._draft = SessionDraft(source=source, session_id=session_id, format_name=format_name, file=file)
        self._turns: list[_Turn] = []

    @property
    def turns(self) -> int:
        """How many turns there are so far."""
        return len(self._turns)

    def say(self, at: Place, message: Message) -> Place:
        """A message that goes into later requests and answers nobody: instructions, machine text, summaries."""
        return Place(at, message, at.turn, at.lost)

    def compact(self, at: Place, messages: list[Message]) -> Place:
        """From here on the context is `messages`; the branch goes on."""
        return Place(at, None, at.turn, at.lost, replaced=tuple(messages))

    def lose(self, at: Place) -> Place:
        """The policy may have answered here, and there is no row of it."""
        return at if at.lost else Place(at, None, at.turn, True)

    def interrupt(self, at: Place) -> Place:
        """A person stopped the policy: the answer right here was cut off, or one that left no row."""
        if at.answered and at.turn is not None and not at.lost:
            self._turns[at.turn].finish_reason = "aborted"
            return at
        return self.lose(at)

    def answer(
        self,
        at: Place,
        response: Response,
        *,
        finish_reason: FinishReason,
        policy: str,
        line: int,
        kind: TurnKind = "main",
        tools: list[dict[str, Any]] | None = None,
        sampling: dict[str, Any] | None = None,
        ended_at: str | None = None,
        message: Message | None = None,
    ) -> Place:
        """The policy answered: a turn. `message` is how later requests repeat it, where that is not the usual way; an
        answer with neither text nor a call is not repeated."""
        ids = frozenset(call.id for call in response.tool_calls if call.id)
        self._turns.append(
            _Turn(at, response, finish_reason, policy, line, kind, tools or [], sampling or {}, ended_at, call_ids=ids)
        )
        if message is None and (response.content or response.tool_calls):
            message = assistant_message(response)
        return Place(at, message, len(self._turns) - 1, answered=True)

    def repeat(self, at: Place, answer: Place) -> Place:
        """The answer that stands at place `answer` stands here once more: the same turn on another branch."""
        if at.answered and at.turn == answer.turn:
            return at
        return Place(at, answer.message, answer.turn, answered=True)

    def result(
        self,
        at: Place,
        call_id: str | None,
        content: str,
        *,
        line: int,
        kind: NextStateKind = "tool_result",
        exit_code: int | None = None,
        observed_at: str | None = None,
        turn: int | None = None,
    ) -> Place:
        """A tool's result: a next state of `turn` where the log names it, else of the latest turn on the way here that
        made the call.

        The very same result once more is the same row written twice. Where an answer may be missing, a further
        result for a call that has one is refused: ids repeat, and the call may be the missing answer's.

        Raises:
            Unreadable: no turn on the way here made that call.
        """
        named = turn is not None
        turn = turn if named else self._caller(at, call_id)
        if turn is None:
            raise Unreadable(f"no answer before it made the tool call {call_id!r}")
        earlier = [] if call_id is None else [s for s in self._turns[turn].states if s["tool_call_id"] == call_id]
        if any(state["content"] == content for state in earlier):
            return at
        if earlier and at.lost and not named:
            raise Unreadable(f"the tool call {call_id!r} has its result, and the row that made it again is missing")
        role = "user" if call_id is None else "tool"
        self._turns[turn].states.append(
            {
                "kind": kind,
                "role": role,
                "content": content,
                "tool_call_id": call_id,
                "exit_code": exit_code,
                "observed_at": observed_at,
                "line": line,
            }
        )
        message = {"role": role, "content": content} | ({} if call_id is None else {"tool_call_id": call_id})
        return Place(at, message, at.turn, at.lost)

    def reply(
        self, at: Place, content: str, *, line: int, message: Message | None = None, observed_at: str | None = None
    ) -> Place:
        """A person spoke: a next state of the turn before, unless an answer after that turn is missing.

        Args:
            content: what the person said, without what machines put around it.
            message: the whole message as it was sent, where that is more.
        """
        if at.turn is not None and not at.lost:
            self.observe(at, "user_reply", content, line=line, role="user", observed_at=observed_at)
        return Place(at, message or {"role": "user", "content": content}, at.turn, at.lost)

    def observe(
        self,
        at: Place,
        kind: NextStateKind,
        content: str | None,
        *,
        line: int,
        role: str | None = None,
        verdict: float | None = None,
        exit_code: int | None = None,
        observed_at: str | None = None,
    ) -> None:
        """A next state of the turn before `at`, which must have one; the context stays as it is."""
        assert at.turn is not None
        self._turns[at.turn].states.append(
            {
                "kind": kind,
                "role": role,
                "content": content,
                "tool_call_id": None,
                "verdict": verdict,
                "exit_code": exit_code,
                "observed_at": observed_at,
                "line": line,
            }
        )

    def called(self, at: Place) -> bool:
        """Whether the latest answer on the way here made a tool call."""
        return at.turn is not None and bool(self._turns[at.turn].response.tool_calls)

    def events(self, line: int) -> Iterator[Event]:
        """All events of the session, the closing one with `line` as its origin; nothing if there is no turn."""
        for turn in self._turns:
            number = self._draft.add_turn(
                messages=turn.asked.context(),
                response=turn.response,
                finish_reason=turn.finish_reason,
                policy=turn.policy,
                line=turn.line,
                sampling=turn.sampling,
                parent=turn.asked.turn,
                tools=turn.tools,
                kind=turn.kind,
                ended_at=turn.ended_at,
            )
            for state in turn.states:
                self._draft.add_next_state(number, **state)
        yield from self._draft.events(line)

    def _caller(self, at: Place, call_id: str | None) -> int | None:
        turn = at.turn
        while turn is not None and call_id:
            if call_id in self._turns[turn].call_ids:
                return turn
            turn = self._turns[turn].asked.turn
        return None
