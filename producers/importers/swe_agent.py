"""SWE-agent's trajectories: one `.traj` file a run, a JSON object {environment, trajectory, history, info, ...}.

- Turn: each step of `trajectory`; its answer is `response`, with the tool calls of the matching assistant message.
- Next state: the step's `observation`, a `terminal_output` that carries the id of the step's tool call where there
  is one. An empty observation is one too: the command printed nothing. null is none: the step ended before output.
- The request: the step's own `query` (`messages` in some versions) where it is there. Else `history` up to the
  assistant message that the step made, without SWE-agent's private keys (agent, thought, action, ...).

Quirks of the files seen:

- Old text format (v0): `state` is a JSON string, roles are only system, user and assistant, the command stands in a
  code block of `response`. In a demonstration `response` may have been edited by hand and differ from the message in
  `history` by text, not by `action`; the turn says what `response` says.
- Function calling: `response` is only the prose; the calls, with their ids, stand in `history`. Ids repeat, but each
  observation belongs to its own step, so nothing has to be searched.
- The last step (`submit`) may be missing from `history`. Its request is then the whole history, and what it called
  is known only as the command that SWE-agent ran: a tool call named `action` without an id.
- A further step that `history` lacks is refused: its request would be a guess.
- A step with an empty `response` and an action like `exit_context` is SWE-agent's mark for a run that it ended itself:
  a turn that was `aborted`.
- `history` is what the agent remembered. A version that shortens old observations before it asks the model shows
  that only in `query`; without `query` the recorded request may be longer than the real one.
- The model has the name and sampling parameters of `replay_config.agent.model` (an object, or a JSON string); without
  it the policy is `unknown`. Nothing else of `replay_config` is read.
- There is no verdict. `info.exit_status` says how the run ended ("submitted", "exit_cost"), not whether a test
  passed, so no `test_verdict` is made of it. Nor is an exit code read out of observations that show one
  ("PROCESS-DONE:0"): whoever writes the output could fake it.
- `state` is not read: its files and directories stand at the end of the messages of the next request.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from producers.importers.base import (
    UNKNOWN_POLICY,
    RefusedRow,
    Row,
    SessionDraft,
    Unreadable,
    check_storable,
    session_id_of,
)
from producers.importers.json_scan import (
    Broken,
    Field,
    Item,
    ScannedObject,
    excerpt_of,
    json_type,
    read_text,
    scan_object,
)
from producers.importers.openai_messages import finish_reason_of, tool_calls_of
from schemas.events import Response, ToolCall

NAME = "swe-agent"
SOURCE = "hindstream/import/swe-agent"

_LISTS = frozenset({"trajectory", "history"})
_SENT_KEYS = ("role", "content", "tool_calls", "tool_call_id", "name")
"""What of a message goes to the model; SWE-agent keeps notes of its own beside it."""


def read(path: Path) -> Iterator[Row]:
    """See `producers.importers.base.Importer.read`. The line of a turn and its next state is that of its step."""
    scanned = scan_object(read_text(path), _LISTS)
    file = path.name
    yield from (RefusedRow(file, row.line, row.reason, row.excerpt) for row in scanned.broken)
    trajectory = scanned.fields.get("trajectory")
    if trajectory is None or trajectory.items is None:
        if not scanned.broken or scanned.fields:
            yield RefusedRow(file, 1, "the file has no list `trajectory`, so there is no turn", "")
        return
    try:
        session_id = session_id_of(SOURCE, {name: item.readable() for name, item in scanned.fields.items()})
    except Unreadable as err:
        yield RefusedRow(file, 1, f"the file cannot be imported: {err}", "")
        return
    draft = SessionDraft(source=SOURCE, session_id=session_id, format_name=NAME, file=file)
    yield from _Run(draft, file, scanned).rows(trajectory.items)


@dataclass(frozen=True)
class _Request:
    """What a step was sent, and the assistant message that it made, where that is in the file."""

    messages: list[dict[str, Any]]
    answer: dict[str, Any] | None


class _Run:
    """One trajectory, read step by step beside its history."""

    def __init__(self, draft: SessionDraft, file: str, scanned: ScannedObject) -> None:
        self.draft, self.file = draft, file
        self.history_field = scanned.fields.get("history")
        self.history, self.history_fault = _history(self.history_field)
        self.policy, self.sampling = _model(scanned.fields.get("replay_config"))
        self.position = 0
        """Where in `history` the next step's assistant message is looked for."""
        self.unmatched: int | None = None
        """A step that `history` lacks (or that could not be read) since the last one that it has."""

    def rows(self, items: list[Item | Broken]) -> Iterator[Row]:
        for row in (self.history_field.items or []) if self.history_field else []:
            if isinstance(row, Broken):
                yield RefusedRow(self.file, row.line, f"history: {row.reason}", row.excerpt)
        if not items:
            yield RefusedRow(self.file, 1, "`trajectory` is empty, so there is no turn", "")
        for index, item in enumerate(items):
            if isinstance(item, Broken):
                self.unmatched = index
                yield RefusedRow(self.file, item.line, f"step {index}: {item.reason}", item.excerpt)
                continue
            try:
                turn, calls = self._turn(index, item)
                self._next_state(turn, calls, item)
            except Unreadable as err:
                yield RefusedRow(self.file, item.line, f"step {index}: {err}", excerpt_of(item.value))
        yield from self.draft.events(items[0].line if items else 1)

    def _turn(self, index: int, item: Item) -> tuple[int, list[ToolCall]]:
        step = item.value
        if not isinstance(step, dict):
            self.unmatched = index
            raise Unreadable(f"is a JSON {json_type(step)}, not an object")
        try:
            text = _text(step, "response")
            request = self._request(index, step)
            calls = _calls(step, request)
            check_storable([request.messages, step.get("observation"), text])
        except Unreadable:
            self.unmatched = index if self.unmatched is None else self.unmatched
            raise
        response = Response(content=text, tool_calls=calls)
        turn = self.draft.add_turn(
            messages=request.messages,
            response=response,
            finish_reason=finish_reason_of(response),
            policy=self.policy,
            sampling=self.sampling,
            line=item.line,
        )
        return turn, calls

    def _next_state(self, turn: int, calls: list[ToolCall], item: Item) -> None:
        if "observation" not in item.value:
            raise Unreadable("the step has no `observation`; its turn goes in without a next state")
        observation = item.value["observation"]
        if observation is None:
            return
        if not isinstance(observation, str):
            raise Unreadable(
                f"`observation` is a JSON {json_type(observation)}, not a string; its turn goes in without a next state"
            )
        self.draft.add_next_state(
            turn,
            "terminal_output",
            line=item.line,
            role="tool" if calls else "user",
            content=observation,
            tool_call_id=calls[0].id if len(calls) == 1 else None,
        )

    def _request(self, index: int, step: dict[str, Any]) -> _Request:
        start = self.position
        answer_at = self._answer_position(step)
        answer = None
        if answer_at is not None:
            answer, self.position, self.unmatched = self.history[answer_at], answer_at + 1, None
        query = step.get("query") or step.get("messages")
        if query is not None:
            if not isinstance(query, list) or not all(isinstance(message, dict) for message in query):
                raise Unreadable("`query` is not a list of messages")
            before = query
        elif answer_at is not None:
            before = self.history[:answer_at]
        else:
            before = self._remembered(index, start)
        return _Request([_as_sent(message) for message in before], answer)

    def _remembered(self, index: int, start: int) -> list[dict[str, Any]]:
        """The request of a step that `history` lacks: all that was remembered before the next known answer."""
        if self.history_fault:
            raise Unreadable(f"what the model was sent is not in the file: {self.history_fault}")
        if self.unmatched is not None:
            raise Unreadable(
                "what the model was sent is not in the file: "
                f"`history` has neither this step nor step {self.unmatched} before it"
            )
        self.unmatched = index
        answers = (i for i in range(start, len(self.history)) if _is_answer(self.history[i]))
        return self.history[: next(answers, len(self.history))]

    def _answer_position(self, step: dict[str, Any]) -> int | None:
        """Where in `history` this step's assistant message stands: the next one, if its text or action is the
        step's, else a later one with exactly its text."""
        ahead = [i for i in range(self.position, len(self.history)) if _is_answer(self.history[i])]
        if not ahead:
            return None
        first = self.history[ahead[0]]
        action = step.get("action")
        if first.get("content") == step["response"] or (action and first.get("action") == action):
            return ahead[0]
        return next((i for i in ahead if self.history[i].get("content") == step["response"]), None)


def _history(found: Field | None) -> tuple[list[dict[str, Any]], str]:
    """The messages of `history` that can be read, and why not all of them can ("" where they can)."""
    if found is None or found.items is None:
        return [], "there is no list `history` and no `query`"
    messages: list[dict[str, Any]] = []
    for item in found.items:
        if isinstance(item, Broken) or not isinstance(item.value, dict):
            return messages, f"`history` cannot be read from line {item.line} on"
        messages.append(item.value)
    return messages, "" if found.whole else "`history` breaks off"


def _is_answer(message: dict[str, Any]) -> bool:
    return message.get("role") == "assistant" and not message.get("is_demo")


def _as_sent(message: dict[str, Any]) -> dict[str, Any]:
    sent = {key: message[key] for key in _SENT_KEYS if message.get(key) is not None}
    sent.setdefault("content", None)
    ids = message.get("tool_call_ids")
    if message.get("role") == "tool" and "tool_call_id" not in sent and isinstance(ids, list) and ids:
        sent["tool_call_id"] = ids[0]
    return sent


def _text(step: dict[str, Any], name: str) -> str:
    if name not in step:
        raise Unreadable(f"the step has no `{name}`")
    text = step[name]
    if not isinstance(text, str):
        raise Unreadable(f"`{name}` is a JSON {json_type(text)}, not a string")
    return text


def _calls(step: dict[str, Any], request: _Request) -> list[ToolCall]:
    """The step's tool calls: those of its message; where that is missing in a run that calls functions, the command
    as it was run, since then the text does not hold it."""
    if request.answer is not None:
        return tool_calls_of(request.answer)
    action = step.get("action")
    if not isinstance(action, str) or not action.strip():
        return []
    if not any(message.get("tool_calls") for message in request.messages):
        return []
    if not step["response"].strip() and action.startswith("exit_"):
        return []  # SWE-agent's own mark for a run that it ended; no answer came from the model
    return [ToolCall(id=None, name="action", arguments=action)]


def _model(found: Field | None) -> tuple[str, dict[str, Any]]:
    """Name and sampling parameters of the model, as `replay_config` has them."""
    config = found.value if found is not None else None
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except (ValueError, RecursionError):
            config = None
    agent = config.get("agent") if isinstance(config, dict) else None
    model = agent.get("model") if isinstance(agent, dict) else None
    if not isinstance(model, dict):
        return UNKNOWN_POLICY, {}
    sampling = {
        key: float(model[key])
        for key in ("temperature", "top_p")
        if isinstance(model.get(key), (int, float)) and not isinstance(model[key], bool)
    }
    name = model.get("name")
    return name if isinstance(name, str) and name else UNKNOWN_POLICY, sampling
