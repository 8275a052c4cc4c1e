"""OpenCUA's human-made GUI sessions: AgentNetBench ({steps}, one file each) and AgentNet ({traj}, JSON lines).

- Session: a file of AgentNetBench, a row of AgentNet. Turn: a step; its answer is the instruction for the step as text,
  the thought as reasoning, and the action's code as one tool call `action`. The policy is `human`.
- The request: the task, then each screen (the picture by its name, the observation as text) and the answer to it.
- Next state: the screen of the step after it, a `gui_change` with the picture's name and the observation. Step numbers
  may jump: benchmark files leave steps out, so a change may also show what a step left out did; its text says so.
- Verdicts, each a `test_verdict`: `milestone` true is 1.0 on its step (false is no failure and gives none);
  `last_step_correct` of a step judges the step before it; `task_completed` the last step. That the last action
  itself says "success" is a claim of whoever acted, not a verdict.

`ground_truth_actions`, scores of alignment and efficiency and the annotators' `reason` are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from producers.importers.base import RefusedRow, Row, SessionDraft, Unreadable, check_storable, session_id_of
from producers.importers.detect import Head
from producers.importers.gui import Message, action_call, answer_message, screen_message, screen_text
from producers.importers.json_rows import json_rows
from producers.importers.json_scan import Broken, excerpt_of, json_type
from schemas.events import Response

NAME = "opencua"
SOURCE = "hindstream/import/opencua"
POLICY = "human"


def sniff(head: Head) -> bool:
    """See `producers.importers.base.Importer.sniff`."""
    steps = _steps(head.object)
    first = steps[0] if steps else None
    return isinstance(first, dict) and "image" in first and ("inner_monologue" in first or "value" in first)


def read(path: Path) -> Iterator[Row]:
    """See `producers.importers.base.Importer.read`. The line of every row is that on which its session starts."""
    first_line: dict[str, int] = {}
    for item in json_rows(path):
        if isinstance(item, Broken):
            yield RefusedRow(path.name, item.line, item.reason, item.excerpt)
            continue
        try:
            if not isinstance(item.value, dict):
                raise Unreadable(f"is a JSON {json_type(item.value)}, not an object")
            steps = _steps(item.value)
            if not steps:
                raise Unreadable("has no steps (a list `steps` or `traj`), so there is no turn")
            check_storable(item.value)
            session_id = session_id_of(SOURCE, item.value)
            if session_id in first_line:
                raise Unreadable(f"repeats the session at line {first_line[session_id]} word for word, which is in")
        except Unreadable as err:
            yield RefusedRow(path.name, item.line, str(err), excerpt_of(item.value))
            continue
        first_line[session_id] = item.line
        draft = SessionDraft(source=SOURCE, session_id=session_id, format_name=NAME, file=path.name)
        yield from _Session(draft, path.name, item.line).rows(item.value, steps)


class _Session:
    """One session, step by step."""

    def __init__(self, draft: SessionDraft, file: str, line: int) -> None:
        self.draft, self.file, self.line = draft, file, line
        self.sent: list[Message] = []
        self.turn: int | None = None
        """The turn of the step just before, None where that could not be read."""
        self.number: int | None = None

    def rows(self, session: dict[str, Any], steps: list[Any]) -> Iterator[Row]:
        self.sent.append({"role": "user", "content": _task(session)})
        for index, step in enumerate(steps):
            try:
                self._step(step)
            except Unreadable as err:
                self.turn = self.number = None
                yield self._refused(f"step {index}: {err}", step)
        completed = session.get("task_completed")
        if isinstance(completed, bool):
            if self.turn is None:
                yield self._refused("`task_completed`: the step that it judges could not be read", completed)
            else:
                self._verdict(self.turn, completed, "task_completed")
        yield from self.draft.events(self.line)

    def _step(self, step: Any) -> None:
        if not isinstance(step, dict):
            raise Unreadable(f"is a JSON {json_type(step)}, not an object")
        said = step.get("inner_monologue", step.get("value"))
        if not isinstance(said, dict):
            raise Unreadable("has neither an object `inner_monologue` nor an object `value`")
        image, seen = _text(step, "image"), _text(said, "observation")
        number = step.get("step_num", step.get("index"))
        number = number if isinstance(number, int) and not isinstance(number, bool) else None
        action = _text(step, "action") or _text(said, "code")
        before, self.turn, last_number, self.number = self.turn, None, self.number, number
        if before is not None:
            left_out = number - last_number - 1 if number is not None and last_number is not None else 0
            note = f"\n[{left_out} step(s) between are not in the log]" if left_out > 0 else ""
            self.draft.add_next_state(before, "gui_change", line=self.line, content=screen_text(image, seen) + note)
            if isinstance(correct := said.get("last_step_correct"), bool):
                self._verdict(before, correct, "last_step_correct")
        self.sent.append(screen_message(image, seen))
        if action is None:
            raise Unreadable("has no action")
        content = _text(said, "low_level_instruction") or _text(said, "action")
        response = Response(content=content, reasoning=_text(said, "thought"), tool_calls=[action_call(action)])
        self.turn = self.draft.add_turn(
            messages=list(self.sent), response=response, finish_reason="tool_calls", policy=POLICY, line=self.line
        )
        self.sent.append(answer_message(response))
        if step.get("milestone") is True:
            self._verdict(self.turn, True, "milestone")

    def _verdict(self, turn: int, good: bool, what: str) -> None:
        self.draft.add_next_state(turn, "test_verdict", line=self.line, verdict=float(good), content=what)

    def _refused(self, reason: str, value: Any) -> RefusedRow:
        return RefusedRow(self.file, self.line, reason, excerpt_of(value))


def _steps(session: dict[str, Any]) -> list[Any]:
    found = session.get("steps", session.get("traj"))
    return found if isinstance(found, list) else []


def _task(session: dict[str, Any]) -> str:
    names = ("high_level_task_description", "instruction", "user_task_description", "natural_language_task")
    return next((text for name in names if isinstance(text := session.get(name), str) and text), "")


def _text(holder: dict[str, Any], name: str) -> str | None:
    value = holder.get(name)
    if value is not None and not isinstance(value, str):
        raise Unreadable(f"`{name}` is a JSON {json_type(value)}, not a string")
    return value or None
