"""Model calls and tool runs as a tracing tool's importer finds them, and the order that their links give them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from producers.importers.base import Unreadable
from producers.importers.choices import Answer
from producers.importers.parts import shown_text
from producers.importers.threads import Key, Message, message_key


@dataclass(frozen=True, kw_only=True)
class ModelCall:
    """One request and its answers (several: candidates of one prompt). `order` sorts calls before links are known."""

    key: str
    order: tuple[Any, ...]
    line: int
    messages: list[Message]
    answers: list[Answer]
    policy: str
    tools: list[dict[str, Any]] = field(default_factory=list)
    sampling: dict[str, Any] = field(default_factory=dict)
    started_at: str | None = None
    ended_at: str | None = None

    @cached_property
    def keys(self) -> list[Key]:
        """The key of each message."""
        return [message_key(message) for message in self.messages]


@dataclass(frozen=True, kw_only=True)
class ToolRun:
    """One execution of a tool. `result` is None where it never came."""

    key: str
    order: tuple[Any, ...]
    line: int
    name: str
    arguments: str | None
    call_id: str | None
    result: str | None
    ended_at: str | None = None


def check_call(messages: list[Message], answers: list[Answer]) -> None:
    """Refuse a call whose parts could not be shown as text later.

    Raises:
        Unreadable: a message of the request has no text.
    """
    for message in messages:
        if message.get("content") is not None:
            shown_text(message["content"])
        elif message.get("role") == "user":
            raise Unreadable("a user message without content")
    if not answers:
        raise Unreadable("there is no answer")


def in_order(calls: list[ModelCall]) -> list[ModelCall]:
    """By `order`, but each after all calls whose answers its request holds."""
    waiting = sorted(calls, key=lambda call: call.order)
    made: dict[str | Key, list[str]] = {}
    for call in waiting:
        for answer in call.answers:
            for tool_call in answer.response.tool_calls:
                if tool_call.id:
                    made.setdefault(tool_call.id, []).append(call.key)
            made.setdefault(message_key(answer.message), []).append(call.key)
    needs = {call.key: _needs(call, made) for call in waiting}
    done: set[str] = set()
    ordered: list[ModelCall] = []
    while waiting:
        # Calls that need each other (an id that repeats) go by `order`.
        taken = next((call for call in waiting if needs[call.key] <= done), waiting[0])
        waiting.remove(taken)
        ordered.append(taken)
        done.add(taken.key)
    return ordered


def _needs(call: ModelCall, made: dict[str | Key, list[str]]) -> set[str]:
    """Keys of the calls that must come first: only where one alone can have said what the request holds."""
    needed: set[str] = set()
    for message, key in zip(call.messages, call.keys, strict=True):
        role, said = message.get("role"), message.get("tool_call_id") if message.get("role") == "tool" else key
        if role == "tool" or (role == "assistant" and not is_empty(message)):
            makers = made.get(said or "", [])
            needed.update(makers if len(makers) == 1 else [])
    return needed - {call.key}


def is_empty(message: Message) -> bool:
    """Whether an answer says and calls nothing."""
    return not message.get("tool_calls") and not (message.get("content") or "")
