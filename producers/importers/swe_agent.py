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
- A step that `history` lacks, right after another that it lacks, is refused: its request would be a guess.
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
from pathlib import Path
from typing import Any

from producers.importers.base import (
    UNKNOWN_POLICY,
    RefusedRow,
    Row,
    SessionDraft,
    StorableOnce,
    Unreadable,
    check_storable,
    session_id_of,
)
from producers.importers.detect import Head
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
from producers.importers.swe_agent_history import History, as_sent
from schemas.events import Response, ToolCall

NAME = "swe-agent"
SOURCE = "hindstream/import/swe-agent"

_LISTS = frozenset({"trajectory", "history"})


def sniff(head: Head) -> bool:
    """See `producers.importers.base.Importer.sniff`: an object with a list `trajectory`, and steps with a `response` or
    a `history`."""
    value = head.value
    if not isinstance(value, dict) or not isinstance(value.get("trajectory"), list):
        return False
    steps = [step for step in value["trajectory"] if isinstance(step, dict)]
    return "history" in value or any("response" in step for step in steps)


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
    yield from _Run(draft, file, scanned, trajectory.items).rows()


class _Run:
    """One trajectory, read step by step beside its history."""

    def __init__(self, draft: SessionDraft, file: str, scanned: ScannedObject, items: list[Item | Broken]) -> None:
        self.draft, self.file, self.items = draft, file, items
        found = scanned.fields.get("history")
        self.broken_history = [row for row in (found.items or []) if isinstance(row, Broken)] if found else []
        self.history = History(found, [item.value if isinstance(item, Item) else None for item in items])
        self.storable = StorableOnce()
        self.policy, self.sampling = _model(scanned.fields.get("replay_config"))

    def rows(self) -> Iterator[Row]:
        for row in self.broken_history:
            yield RefusedRow(self.file, row.line, f"history: {row.reason}", row.excerpt)
        if not self.items:
            yield RefusedRow(self.file, 1, "`trajectory` is empty, so there is no turn", "")
        for index, item in enumerate(self.items):
            if isinstance(item, Broken):
                yield RefusedRow(self.file, item.line, f"step {index}: {item.reason}", item.excerpt)
                continue
            try:
                self._take(index, item)
            except Unreadable as err:
                yield RefusedRow(self.file, item.line, f"step {index}: {err}", excerpt_of(item.value))
        yield from self.draft.events(self.items[0].line if self.items else 1)

    def _take(self, index: int, item: Item) -> None:
        step = item.value
        if not isinstance(step, dict):
            raise Unreadable(f"is a JSON {json_type(step)}, not an object")
        text = _text(step, "response")
        messages = self._request(index, step)
        response = Response(content=text, tool_calls=_calls(step, self.history.answer(index), messages))
        observation = step.get("observation")
        self.storable.check(messages)
        check_storable([text, observation])
        turn = self.draft.add_turn(
            messages=messages,
            response=response,
            finish_reason=finish_reason_of(response),
            policy=self.policy,
            sampling=self.sampling,
            line=item.line,
        )
        if "observation" not in step:
            raise Unreadable("the step has no `observation`; its turn goes in without a next state")
        if observation is None:
            return
        if not isinstance(observation, str):
            raise Unreadable(
                f"`observation` is a JSON {json_type(observation)}, not a string; its turn goes in without a next state"
            )
        calls = response.tool_calls
        self.draft.add_next_state(
            turn,
            "terminal_output",
            line=item.line,
            role="tool" if calls else "user",
            content=observation,
            tool_call_id=calls[0].id if len(calls) == 1 else None,
        )

    def _request(self, index: int, step: dict[str, Any]) -> list[dict[str, Any]]:
        query = step.get("query") or step.get("messages")
        if query is None:
            return self.history.request(index)
        if not isinstance(query, list) or not all(isinstance(message, dict) for message in query):
            raise Unreadable("`query` is not a list of messages")
        return [as_sent(message) for message in query]


def _text(step: dict[str, Any], name: str) -> str:
    if name not in step:
        raise Unreadable(f"the step has no `{name}`")
    text = step[name]
    if not isinstance(text, str):
        raise Unreadable(f"`{name}` is a JSON {json_type(text)}, not a string")
    return text


def _calls(step: dict[str, Any], answer: dict[str, Any] | None, messages: list[dict[str, Any]]) -> list[ToolCall]:
    """The step's tool calls: those of its message; where that is missing in a run that calls functions, the command
    as it was run, since then the text does not hold it."""
    if answer is not None:
        return tool_calls_of(answer)
    action = step.get("action")
    if not isinstance(action, str) or not action.strip():
        return []
    if not any(message.get("tool_calls") for message in messages):
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
