"""Model calls and tool runs of a trace, in whatever order they were written, as one session's tree of turns.

Tracing tools keep each model call with the whole request that it was sent, so who follows whom is read from the
requests: a call follows the turn whose conversation its request continues word for word, else the turn whose tool
calls its request answers, else the turn whose answer is the last one in its request. What is linked to none begins a
branch of its own: agents within one trace that talk past each other stay apart. Clocks only decide who is looked at
first, and a link outweighs them. A request of nothing but tool results, as an API that keeps the conversation on its
side gets it, is completed by the conversation that it continues.

Next states are read from the requests too: what follows the last answer there is what the model was shown. The run of a
tool that no request shows (the last one, or one whose result was dropped) is taken from its own span.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from producers.importers.base import SessionDraft
from producers.importers.calls import ModelCall, ToolRun, in_order, is_empty
from producers.importers.choices import Answer
from producers.importers.parts import shown_text
from producers.importers.threads import Key, Message, call_key, conversation_key, last_answer, message_key
from schemas.digests import content_id
from schemas.events import NextStateKind


@dataclass
class _State:
    kind: NextStateKind
    role: str
    content: str
    call_id: str | None
    line: int
    observed_at: str | None = None


@dataclass
class _Turn:
    call: ModelCall
    messages: list[Message]
    answer: Answer
    number: int
    states: list[_State] = field(default_factory=list)
    answered: set[int] = field(default_factory=set)
    """Which of the answer's tool calls have a result, by their place."""


@dataclass(frozen=True)
class Loose:
    """A row that could not be put anywhere: its key, its line and the reason."""

    key: str
    line: int
    reason: str


class Trace:
    """Puts model calls and tool runs into a draft. Add the verdicts after `place`, events come from the draft."""

    def __init__(self, draft: SessionDraft) -> None:
        self.draft = draft
        self.turns: list[_Turn] = []
        self.number_of: dict[str, int] = {}
        """Number of the (first) turn that a model call made, by its key."""
        self._by_prefix: dict[Key, _Turn] = {}
        self._by_call_id: dict[str, _Turn] = {}
        self._by_answer: dict[Key, _Turn] = {}

    def place(self, calls: Iterable[ModelCall], runs: Iterable[ToolRun]) -> list[Loose]:
        """Make every turn and next state; returns what could not be put anywhere."""
        loose: list[Loose] = []
        ordered = in_order(list(calls))
        for call in ordered:
            loose += self._call(call)
        for run in sorted(runs, key=lambda one: one.order):
            loose += self._run(run)
        for turn in self.turns:
            for state in sorted(turn.states, key=lambda one: one.kind != "tool_result"):
                self.draft.add_next_state(
                    turn.number,
                    state.kind,
                    line=state.line,
                    role=state.role,
                    content=state.content,
                    tool_call_id=state.call_id,
                    observed_at=state.observed_at,
                )
        return loose

    def _call(self, call: ModelCall) -> list[Loose]:
        loose: list[Loose] = []
        parent, after = self._parent(call)
        replied = False
        for message in after:
            role = message.get("role")
            if role == "tool":
                loose += self._result(call, message, parent)
            elif role == "user" and not replied and parent is not None:
                replied = True
                self._add(parent, _State("user_reply", "user", shown_text(message["content"]), None, call.line))
        messages, keys = call.messages, call.keys
        if parent is not None and all(message.get("role") == "tool" for message in messages):
            messages = [*parent.messages, parent.answer.message, *messages]
            keys = [message_key(message) for message in messages]
        group = content_id("group", self.draft.source, self.draft.session_id, len(self.turns))
        for answer in call.answers:
            number = self.draft.add_turn(
                messages=messages,
                response=answer.response,
                finish_reason=answer.finish_reason,
                policy=call.policy,
                line=call.line,
                sampling=call.sampling,
                parent=None if parent is None else parent.number,
                tools=call.tools,
                group_id=group if len(call.answers) > 1 else None,
                started_at=call.started_at,
                ended_at=call.ended_at,
            )
            turn = _Turn(call, messages, answer, number)
            self.turns.append(turn)
            self.number_of.setdefault(call.key, number)
            said = message_key(answer.message)
            self._by_prefix[conversation_key([*keys, said])] = turn
            self._by_answer[said] = turn
            for tool_call in answer.response.tool_calls:
                if tool_call.id:
                    self._by_call_id[tool_call.id] = turn
        return loose

    def _parent(self, call: ModelCall) -> tuple[_Turn | None, Sequence[Message]]:
        """The turn that a request continues, and what the request says to it."""
        last = last_answer(call.messages)
        after = call.messages[last + 1 :]
        if last >= 0 and (found := self._by_prefix.get(conversation_key(call.keys[: last + 1]))):
            return found, after
        results = [m["tool_call_id"] for m in after if m.get("role") == "tool" and m.get("tool_call_id")]
        found = next((self._by_call_id[name] for name in results if name in self._by_call_id), None)
        if found is None and last >= 0 and not is_empty(call.messages[last]):
            found = self._by_answer.get(call.keys[last])
        return found, after if found is not None else []

    def _result(self, call: ModelCall, message: Message, parent: _Turn | None) -> list[Loose]:
        call_id = message.get("tool_call_id")
        turn = parent
        if call_id and (parent is None or not _asked(parent, call_id)):
            turn = self._by_call_id.get(call_id)
        if turn is None:
            return [Loose(call.key, call.line, f"the result of tool call {call_id!r}: no answer before it made it")]
        content = message.get("content")
        text = "" if content is None else shown_text(content)
        self._add(turn, _State("tool_result", "tool", text, call_id, call.line))
        _mark(turn, call_id)
        return []

    def _run(self, run: ToolRun) -> list[Loose]:
        if run.result is None:
            return []  # it never came back, which is nothing to record
        if run.call_id and run.call_id in self._by_call_id:
            before = [t for t in self.turns if t.call.order <= run.order and _asked(t, run.call_id)]
            turn = before[-1] if before else self._by_call_id[run.call_id]
            place = next(i for i, one in enumerate(turn.answer.response.tool_calls) if one.id == run.call_id)
        else:
            wanted = call_key(run.name, run.arguments)
            matches = [
                (turn, index)
                for turn in self.turns
                for index, one in enumerate(turn.answer.response.tool_calls)
                if call_key(one.name, one.arguments) == wanted
            ]
            if not matches:
                return [Loose(run.key, run.line, f"the run of tool {run.name!r}: no answer asked for it")]
            # The latest before it that still waits; if none waits, the request has already shown this result.
            waiting = [(turn, index) for turn, index in matches if index not in turn.answered]
            if not waiting:
                return []
            earlier = [one for one in waiting if one[0].call.order <= run.order]
            turn, place = (earlier or waiting)[-1]
        if place in turn.answered:
            return []
        turn.answered.add(place)
        call_id = turn.answer.response.tool_calls[place].id
        turn.states.append(_State("tool_result", "tool", run.result, call_id, run.line, run.ended_at))
        return []

    @staticmethod
    def _add(turn: _Turn, state: _State) -> None:
        """Unless another request that continues the same turn has shown it already."""
        said = (state.kind, state.content, state.call_id)
        if said not in [(one.kind, one.content, one.call_id) for one in turn.states]:
            turn.states.append(state)


def _asked(turn: _Turn, call_id: str) -> bool:
    return any(one.id == call_id for one in turn.answer.response.tool_calls)


def _mark(turn: _Turn, call_id: str | None) -> None:
    calls = turn.answer.response.tool_calls
    waiting = [i for i, one in enumerate(calls) if i not in turn.answered and (call_id is None or one.id == call_id)]
    turn.answered.update(waiting[:1])
