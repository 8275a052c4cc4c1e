"""tau-bench's recorded runs: a JSON list of entries {task_id, trial, reward, info, traj}.

- Turn: each `assistant` message of `traj`; its request is every message before it.
- Next state: each `tool` message (`tool_result`) and each `user` message after a turn (`user_reply`). A user speaks
  to the turn just before. A tool result belongs to the latest assistant message that made the call with its id:
  ids repeat within an entry, so the first that matches would be the wrong one.
- Verdict: the entry's `reward`, as a `test_verdict` on its last turn.

What the file does not say: which model answered (the policy is `unknown`), sampling parameters, tools offered, tokens,
times, and why an answer ended (`stop` stands for "ended with text"). `info` holds the simulated user's task and the
expected actions; nothing of it goes into an event, since a teacher or judge would read the solution there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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
    text_of,
)
from producers.importers.detect import Head
from producers.importers.json_scan import Broken, excerpt_of, json_type, stream_list
from producers.importers.openai_messages import finish_reason_of, response_of

NAME = "tau-bench"
SOURCE = "hindstream/import/tau-bench"


def sniff(head: Head) -> bool:
    """See `producers.importers.base.Importer.sniff`: a list whose first readable entry has a list `traj`."""
    return isinstance(head.value, list) and isinstance(head.object.get("traj"), list)


def read(path: Path) -> Iterator[Row]:
    """See `producers.importers.base.Importer.read`. The line of every row is that on which its entry starts."""
    first_line: dict[str, int] = {}
    for number, item in enumerate(stream_list(path), start=1):
        if isinstance(item, Broken):
            yield RefusedRow(path.name, item.line, item.reason, item.excerpt)
            continue
        where = f"entry {number}"
        try:
            traj = _trajectory(item.value)
            session_id = session_id_of(SOURCE, item.value)
            if session_id in first_line:
                raise Unreadable(f"repeats the entry at line {first_line[session_id]} word for word, which is in")
        except Unreadable as err:
            yield RefusedRow(path.name, item.line, f"{where} {err}", excerpt_of(item.value))
            continue
        first_line[session_id] = item.line
        draft = SessionDraft(source=SOURCE, session_id=session_id, format_name=NAME, file=path.name)
        yield from _Conversation(draft, path.name, item.line, where).rows(traj, item.value)


def _trajectory(entry: Any) -> list[Any]:
    if not isinstance(entry, dict):
        raise Unreadable(f"is a JSON {json_type(entry)}, not an object")
    traj = entry.get("traj")
    if not isinstance(traj, list):
        raise Unreadable("has no list `traj`")
    if not any(isinstance(message, dict) and message.get("role") == "assistant" for message in traj):
        raise Unreadable("has no assistant message, so there is no turn")
    check_storable(traj)
    return traj


class _Conversation:
    """One entry, read message by message."""

    def __init__(self, draft: SessionDraft, file: str, line: int, where: str) -> None:
        self.draft, self.file, self.line, self.where = draft, file, line, where
        self.sent: list[dict[str, Any]] = []
        self.turn: int | None = None
        self.caller: dict[str, int] = {}
        """Tool call id -> the latest turn that made it."""
        self.gap = False
        """A message that may have been a turn could not be read, and no turn came since: what follows answers it."""

    def rows(self, traj: list[Any], entry: dict[str, Any]) -> Iterator[Row]:
        for index, message in enumerate(traj):
            try:
                self._take(message)
            except Unreadable as err:
                yield self._refused(f", message {index}: {err}", message)
        try:
            self._verdict(entry)
        except Unreadable as err:
            yield self._refused(f": {err}", entry.get("reward"))
        yield from self.draft.events(self.line)

    def _take(self, message: Any) -> None:
        if not isinstance(message, dict):
            self.gap = True
            raise Unreadable(f"is a JSON {json_type(message)}, not an object; left out of the later turns' messages")
        before, role = list(self.sent), message.get("role")
        self.sent.append(message)
        if role == "assistant":
            self._assistant(message, before)
        elif role == "tool":
            self._tool(message)
        elif role == "user":
            self._user(message)
        elif role not in ("system", "developer"):
            self.gap = True
            raise Unreadable(f"role {role!r} is none of system, developer, user, assistant, tool")

    def _assistant(self, message: dict[str, Any], before: list[dict[str, Any]]) -> None:
        self.gap = True
        response = response_of(message)
        self.turn = self.draft.add_turn(
            messages=before,
            response=response,
            finish_reason=finish_reason_of(response),
            policy=UNKNOWN_POLICY,
            line=self.line,
        )
        self.gap = False
        self.caller.update({call.id: self.turn for call in response.tool_calls if call.id})

    def _tool(self, message: dict[str, Any]) -> None:
        call_id = message.get("tool_call_id")
        if not isinstance(call_id, str) or not call_id:
            raise Unreadable("a tool result without `tool_call_id`")
        self._refuse_in_gap()
        if call_id not in self.caller:
            raise Unreadable(f"no assistant message before it made the tool call {call_id!r}")
        self.draft.add_next_state(
            self.caller[call_id],
            "tool_result",
            line=self.line,
            role="tool",
            content=text_of(message.get("content"), "`content`"),
            tool_call_id=call_id,
        )

    def _user(self, message: dict[str, Any]) -> None:
        content = text_of(message.get("content"), "`content`")
        self._refuse_in_gap()
        if self.turn is not None:
            self.draft.add_next_state(self.turn, "user_reply", line=self.line, role="user", content=content)

    def _verdict(self, entry: dict[str, Any]) -> None:
        if "reward" not in entry:
            raise Unreadable("no `reward`, so the session goes in without a verdict")
        reward = entry["reward"]
        if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not 0 <= reward <= 1:
            shown = reward if not isinstance(reward, float) or math.isfinite(reward) else str(reward)
            raise Unreadable(f"`reward` is {shown!r}, not a number from 0 to 1: no verdict goes in")
        self._refuse_in_gap()
        if self.turn is not None:
            self.draft.add_next_state(self.turn, "test_verdict", line=self.line, verdict=float(reward))

    def _refuse_in_gap(self) -> None:
        if self.gap:
            raise Unreadable("the turn that it answers could not be read")

    def _refused(self, reason: str, value: Any) -> RefusedRow:
        return RefusedRow(self.file, self.line, self.where + reason, excerpt_of(value))
