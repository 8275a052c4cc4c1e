"""Which message of a SWE-agent run's `history` is the answer of which step, and what was sent before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from producers.importers.base import Unreadable
from producers.importers.json_scan import Broken, Field

_SENT_KEYS = ("role", "content", "tool_calls", "tool_call_id", "name")
"""What of a message goes to the model; SWE-agent keeps notes of its own beside it."""

Message = dict[str, Any]


class History:
    """The messages of `history` that can be read, laid beside the steps.

    Args:
        found: the field `history`, None where the file has none.
        steps: the steps as they stand in the file; what is no dict could not be read and still takes its place.
    """

    def __init__(self, found: Field | None, steps: Sequence[Any]) -> None:
        self.messages, self._fault = _readable(found)
        self._answers = _align(steps, self.messages)
        self._sent = [as_sent(message) for message in self.messages]

    def answer(self, index: int) -> Message | None:
        """The assistant message that step `index` made; None where `history` lacks it."""
        at = self._answers[index]
        return None if at is None else self.messages[at]

    def request(self, index: int) -> list[Message]:
        """What step `index` was sent: all that was remembered before its answer. Of a step that `history` lacks, all
        before the next answer.

        Raises:
            Unreadable: `history` does not tell.
        """
        at = self._answers[index]
        if at is None:
            if self._fault:
                raise Unreadable(f"what the model was sent is not in the file: {self._fault}")
            at = self._after_step(index - 1)
        return self._sent[:at]

    def _after_step(self, index: int) -> int:
        before = self._answers[index] if index >= 0 else -1
        if before is None:
            raise Unreadable(
                "what the model was sent is not in the file: "
                f"`history` has neither this step nor step {index} before it"
            )
        later = range(before + 1, len(self.messages))
        return next((i for i in later if _is_answer(self.messages[i])), len(self.messages))


def as_sent(message: Message) -> Message:
    """A message without SWE-agent's own notes, in the shape of an OpenAI request."""
    sent = {key: message[key] for key in _SENT_KEYS if message.get(key) is not None}
    sent.setdefault("content", None)
    ids = message.get("tool_call_ids")
    if message.get("role") == "tool" and "tool_call_id" not in sent and isinstance(ids, list) and ids:
        sent["tool_call_id"] = ids[0]
    return sent


def _readable(found: Field | None) -> tuple[list[Message], str]:
    """The messages up to the first that cannot be read, and what keeps the rest away ("": nothing)."""
    if found is None or found.items is None:
        return [], "there is no list `history` and no `query`"
    messages: list[Message] = []
    for item in found.items:
        if isinstance(item, Broken) or not isinstance(item.value, dict):
            return messages, f"`history` cannot be read from line {item.line} on"
        messages.append(item.value)
    return messages, "" if found.whole else "`history` breaks off"


def _align(steps: Sequence[Any], messages: Sequence[Message]) -> list[int | None]:
    """For each step the position of its answer.

    One by one, where every readable step agrees with the answer at its place: then a step that cannot be read costs
    its neighbours nothing, even if several answers look alike. Else each step takes the next answer ahead that
    agrees, or one further on that is exactly its own; right after a step without an answer only the latter counts,
    since the next answer may be that step's.
    """
    answers = [i for i, message in enumerate(messages) if _is_answer(message)]
    beside = list(zip(steps, answers, strict=False))
    if len(answers) <= len(steps) and all(
        _agrees(step, messages[at]) for step, at in beside if isinstance(step, dict) and "response" in step
    ):
        return [*answers, *([None] * (len(steps) - len(answers)))]
    aligned: list[int | None] = []
    position, hole = 0, False
    for step in steps:
        ahead = [i for i in answers if i >= position]
        at = None
        if isinstance(step, dict) and ahead:
            if not hole and _agrees(step, messages[ahead[0]]):
                at = ahead[0]
            else:
                at = next((i for i in ahead if _is_its_own(step, messages[i])), None)
        aligned.append(at)
        hole = at is None
        position = position if at is None else at + 1
    return aligned


def _is_answer(message: Message) -> bool:
    return message.get("role") == "assistant" and not message.get("is_demo")


def _agrees(step: Message, answer: Message) -> bool:
    action = step.get("action")
    return answer.get("content") == step.get("response") or bool(action and answer.get("action") == action)


def _is_its_own(step: Message, answer: Message) -> bool:
    same_action = "action" not in answer or answer["action"] == step.get("action")
    return same_action and answer.get("content") == step.get("response")
