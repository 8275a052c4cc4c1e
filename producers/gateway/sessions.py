"""Where a request stands in its session's tree, read from its messages alone.

Nothing is remembered between requests: a turn is named by the hash of the conversation up to and including its
answer, so the request that continues it names the same hash. An edited message gives another hash, hence a branch.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Any

from schemas import digests
from schemas.depth import nested_deeply
from schemas.events import NextStateKind
from schemas.text import sanitise

SOURCE = "hindstream/gateway"
"""`ce_source` of everything that the gateway records."""

_KNOWN_TURNS = 50_000
"""Turns whose sibling count is remembered, at about 150 bytes each. A forgotten count matters only to whoever
regenerates word by word the same answer after that many others."""

Message = dict[str, Any]


def text_of(content: Any) -> str | None:
    """The text of a message's content: itself, or its text parts joined by newlines; None where there is none."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    parts = [part.get("text") if isinstance(part, dict) else part for part in content]
    texts = [part for part in parts if isinstance(part, str)]
    return "\n".join(texts) if texts else None


def thread(messages: list[Message]) -> list[Any]:
    """`messages` in the form that is hashed: what a client may change without meaning anything is left out.

    Kept are role, text without surrounding space, what is no text (pictures), tool calls with their arguments as
    parsed JSON, and tool_call_id. An assistant message that stands twice in a row, word by word, is one.
    """
    out: list[Any] = []
    for message in messages:
        plain = _canonical(message)
        if not (out and plain[0] == "assistant" and out[-1] == plain):
            out.append(plain)
    clean: list[Any] = sanitise(out)[0]
    return clean


def thread_hash(messages: list[Message]) -> str:
    """Hash of a conversation, equal for every spelling that `thread` calls equal."""
    return digests.digest_of(thread(messages))


def derived_session(messages: list[Message], user: Any) -> str:
    """The session of a request that names none: all that begin with the same first user message (and `user`)."""
    first = next((i for i, m in enumerate(messages) if m.get("role") == "user"), len(messages) - 1)
    return "derived-" + digests.digest_of([thread(messages[: first + 1]), sanitise(user)[0]])[:32]


@dataclass(frozen=True)
class NextState:
    """A message that answered the parent turn; `place` is its index among those that did, from 0."""

    next_state_id: str
    kind: NextStateKind
    place: int
    role: str
    content: str | None
    tool_call_id: str | None


@dataclass(frozen=True)
class Place:
    """Where a request stands: its ordinal, the turn that it continues and what it says to it."""

    ordinal: int
    parent_turn_id: str | None
    next_states: list[NextState]


class Siblings:
    """How often a session gave word by word the same conversation: the only memory, bounded, and lost with the process.

    After a restart, or at another gateway, the same session giving the same answer to the same messages names the
    turn that is already recorded; the processors keep the first and set the second aside as a conflict. Thread-safe.
    """

    def __init__(self, limit: int = _KNOWN_TURNS) -> None:
        self._limit = limit
        # By the 64-bit hash of (session, conversation): of so many turns two share one with odds of 10^-10.
        self._counts: OrderedDict[int, int] = OrderedDict()
        self._lock = Lock()

    def another(self, session_id: str, conversation: str) -> int:
        """Number of the new turn with this conversation hash, from 0."""
        key = hash((session_id, conversation))
        with self._lock:
            number = self._counts.pop(key, -1) + 1
            self._counts[key] = number
            if len(self._counts) > self._limit:
                self._counts.popitem(last=False)
            return number

    def latest(self, session_id: str, conversation: str) -> int:
        """Number of the latest turn with this conversation hash; 0 where it is not remembered."""
        with self._lock:
            return self._counts.get(hash((session_id, conversation)), 0)


def turn_id(session_id: str, ordinal: int, conversation: str, number: int) -> str:
    """Id of the turn that ended `conversation` (a thread hash, answer included)."""
    return digests.turn_id(SOURCE, session_id, ordinal, "turn", conversation, number)


def locate(session_id: str, messages: list[Message], siblings: Siblings, kind: NextStateKind | None = None) -> Place:
    """The place of a request in its session.

    The next states are every tool result after the last assistant message, and the first user message there. A
    second user message in a row answers something that is missing (an aborted turn), not the older turn. `kind`
    overrides the kind that the role implies.
    """
    last = max((i for i, m in enumerate(messages) if m.get("role") == "assistant"), default=None)
    ordinal = assistant_turns(messages)
    if last is None:
        return Place(ordinal, None, [])
    conversation = thread_hash(messages[: last + 1])
    parent = turn_id(session_id, ordinal - 1, conversation, siblings.latest(session_id, conversation))
    return Place(ordinal, parent, _next_states(parent, messages[last + 1 :], kind))


def assistant_turns(messages: list[Message]) -> int:
    """Assistant messages, doubled ones counted once."""
    return sum(1 for plain in thread(messages) if plain[0] == "assistant")


def _next_states(parent: str, after: list[Message], kind: NextStateKind | None) -> list[NextState]:
    answers = [m for m in after if m.get("role") in ("tool", "function")]
    replies = [m for m in after if m.get("role") == "user"][:1]
    wanted = [m for m in after if any(m is chosen for chosen in (*answers, *replies))]
    out = []
    for place, message in enumerate(wanted):
        implied: NextStateKind = "user_reply" if message["role"] == "user" else "tool_result"
        chosen = kind or implied
        content_hash = digests.digest_of(sanitise(message)[0])
        call = message.get("tool_call_id")
        out.append(
            NextState(
                next_state_id=digests.next_state_id(parent, chosen, place, content_hash),
                kind=chosen,
                place=place,
                role=message["role"],
                content=text_of(message.get("content")),
                tool_call_id=call if isinstance(call, str) else None,
            )
        )
    return out


def _canonical(message: Message) -> list[Any]:
    content = message.get("content")
    others: list[Any] = []
    if isinstance(content, list):
        others = [p for p in content if not (isinstance(p, str) or (isinstance(p, dict) and "text" in p))]
    elif content is not None and not isinstance(content, str):
        others = [content]
    calls = message.get("tool_calls")
    return [
        message.get("role"),
        (text_of(content) or "").strip(),
        others,
        [_call(call) for call in calls] if isinstance(calls, list) else [],
        message.get("tool_call_id"),
    ]


def _call(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = _parsed(arguments)
    return [call.get("id"), function.get("name"), arguments]


def _parsed(arguments: str) -> Any:
    """Tool arguments as JSON; as text where they are none, or none that can be hashed."""
    try:
        plain = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments.strip()
    return arguments.strip() if nested_deeply(plain) else plain
