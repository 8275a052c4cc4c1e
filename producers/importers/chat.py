"""Messages in OpenAI's shape, in their order, as turns and next states: what several formats come to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from producers.importers.base import UNKNOWN_POLICY, RefusedRow, SessionDraft, Unreadable
from producers.importers.json_scan import excerpt_of, json_type
from producers.importers.openai_messages import finish_reason_of, response_of
from producers.importers.parts import shown_text

Message = dict[str, Any]


class Chat:
    """One conversation, taken message by message into a draft.

    - Turn: each `assistant` message; its request is every message before it.
    - Next state: each `tool` message (`tool_result`, of the latest turn that made the call with its id, or of the
      turn just before where it names no call), and the first `user` message after a turn (`user_reply`).
    - A message that cannot be read is refused. What follows an answer that could not be read is refused up to the
      next answer: it is not feedback on an older one.

    Args:
        where: what a refusal's reason begins with, for example `entry 3`.
        line: the line of all of it; `take` may say a better one.
    """

    def __init__(
        self,
        draft: SessionDraft,
        *,
        file: str,
        line: int,
        where: str,
        policy: str = UNKNOWN_POLICY,
        tools: list[dict[str, Any]] | None = None,
    ) -> None:
        self.draft, self.file, self.line, self.where = draft, file, line, where
        self.policy, self.tools = policy, tools
        self.sent: list[Message] = []
        self.turn: int | None = None
        """The latest turn of the branch that is being read."""
        self.group: str | None = None
        """Group of the next turn: set it where several answers to one prompt follow."""
        self._caller: dict[str, int] = {}
        self._gap = self._replied = False

    def branch(self) -> Chat:
        """The same conversation so far, to be continued in another way."""
        copy = Chat(self.draft, file=self.file, line=self.line, where=self.where, policy=self.policy, tools=self.tools)
        copy.sent, copy.turn, copy._caller = list(self.sent), self.turn, dict(self._caller)
        copy._gap, copy._replied = self._gap, self._replied
        return copy

    def take(self, messages: Iterable[Any], what: str = "message") -> Iterator[RefusedRow]:
        """Read the messages; yields what is refused."""
        for index, message in enumerate(messages):
            try:
                self.take_one(message)
            except Unreadable as err:
                yield self.refused(f", {what} {index}: {err}", message)

    def take_one(self, message: Any) -> None:
        """Read one message.

        Raises:
            Unreadable: it is refused, for the reason given.
        """
        if not isinstance(message, dict):
            self._gap = True
            raise Unreadable(f"is a JSON {json_type(message)}, not an object; left out of the later turns' messages")
        before, role = list(self.sent), message.get("role")
        self.sent.append({key: value for key, value in message.items() if key != "weight"})  # for trainers alone
        if role == "assistant":
            self._assistant(message, before)
        elif role in ("tool", "function"):
            self._tool(message)
        elif role == "user":
            self._user(message)
        elif role not in ("system", "developer"):
            self._gap = True
            raise Unreadable(f"role {role!r} is none of system, developer, user, assistant, tool")

    def lose_turn(self) -> None:
        """What may have been an answer could not be read: nothing that follows is linked up to the next one."""
        self._gap = True

    def judge(self, verdict: float | None, content: str | None = None) -> None:
        """A verdict on the latest turn.

        Raises:
            Unreadable: that turn could not be read, or there is none.
        """
        self._refuse_in_gap()
        if self.turn is None:
            raise Unreadable("there is no turn that the verdict could be on")
        self.draft.add_next_state(self.turn, "test_verdict", line=self.line, verdict=verdict, content=content)

    def refused(self, reason: str, value: Any) -> RefusedRow:
        """The row that says what did not go in."""
        return RefusedRow(self.file, self.line, self.where + reason, excerpt_of(value))

    def _assistant(self, message: Message, before: list[Message]) -> None:
        self._gap, parent = True, self.turn
        response = response_of(message)
        self.turn = self.draft.add_turn(
            messages=before,
            response=response,
            finish_reason=finish_reason_of(response),
            policy=self.policy,
            line=self.line,
            parent=parent,
            tools=self.tools,
            kind="side" if message.get("weight") == 0 else "main",
            group_id=self.group,
        )
        self.group = None
        self._gap = self._replied = False
        self._caller.update({call.id: self.turn for call in response.tool_calls if call.id})

    def _tool(self, message: Message) -> None:
        call_id = message.get("tool_call_id")
        if call_id is not None and (not isinstance(call_id, str) or not call_id):
            raise Unreadable(f"`tool_call_id` is a JSON {json_type(call_id)}, not a name")
        self._refuse_in_gap()
        if call_id is None and self.turn is None:
            raise Unreadable("a tool result before any assistant message")
        if call_id is not None and call_id not in self._caller:
            raise Unreadable(f"no assistant message before it made the tool call {call_id!r}")
        turn = self.turn if call_id is None else self._caller[call_id]
        assert turn is not None
        content = shown_text(message.get("content"))
        self.draft.add_next_state(
            turn, "tool_result", line=self.line, role="tool", content=content, tool_call_id=call_id
        )

    def _user(self, message: Message) -> None:
        first, self._replied = not self._replied, True
        content = shown_text(message.get("content"))
        self._refuse_in_gap()
        if self.turn is not None and first:
            self.draft.add_next_state(self.turn, "user_reply", line=self.line, role="user", content=content)

    def _refuse_in_gap(self) -> None:
        if self._gap:
            raise Unreadable("the turn that it answers could not be read")
