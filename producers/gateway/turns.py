"""From a request and its answer to the events that record them. Pure: clocks and counters come from outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from producers.gateway.sessions import SOURCE, Message, NextState, Place, Siblings, text_of, thread_hash, turn_id
from schemas import digests
from schemas.envelope import Event, new_event
from schemas.events import (
    EventData,
    FinishReason,
    NextStateObserved,
    PolicyRef,
    Response,
    SessionClosed,
    Tokens,
    ToolCall,
    TurnKind,
    TurnRecorded,
    VersionSpan,
)

NOT_SAMPLING = frozenset(
    {"messages", "tools", "model", "session_id", "user", "metadata", "stream", "stream_options", "safety_identifier"}
)
"""Fields of a request that say what is asked or by whom; all others say how to answer."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a request: the assistant message as the caller gets it, and what the engine says about it."""

    message: Message
    finish_reason: FinishReason
    tokens: Tokens = field(default_factory=Tokens)
    spans: list[VersionSpan] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One request with its outcome. Times are ISO 8601."""

    session_id: str
    kind: TurnKind
    body: dict[str, Any]
    place: Place
    outcome: Outcome
    policy: str
    started_at: str
    ended_at: str
    closes: bool
    tenant: str | None = None
    user_secret: str | None = None


def failed(reason: FinishReason) -> Outcome:
    """The outcome of a request that got no answer: `aborted` or `error`."""
    return Outcome(message={"role": "assistant", "content": ""}, finish_reason=reason)


def events_of(exchange: Exchange, siblings: Siblings) -> tuple[str, list[Event]]:
    """The turn's id, and the events in the order in which they go on the log: what the request says to its parent
    turn, the turn, and the session's end if the caller declared it."""
    names, events = events_of_group([exchange], siblings)
    return names[0], events


def events_of_group(exchanges: Sequence[Exchange], siblings: Siblings) -> tuple[list[str], list[Event]]:
    """The same for the candidates of one request, which differ in their outcome alone: each is a turn of its own, and
    what the request says to its parent is said once. Candidates, if there are several, share a group_id."""
    first = exchanges[0]
    names = [_name(exchange, siblings) for exchange in exchanges]
    group_id = digests.content_id("group", *names) if len(names) > 1 else None
    observed = [_next_state(first, state) for state in first.place.next_states]
    turns = [_event(one, name, _turn(one, name, group_id)) for one, name in zip(exchanges, names, strict=True)]
    events = [*observed, *turns]
    if first.closes:
        closed_id = digests.content_id("closed", first.session_id, names[-1])
        events.append(_event(first, closed_id, SessionClosed(session_id=first.session_id, reason="done")))
    return names, events


def _name(exchange: Exchange, siblings: Siblings) -> str:
    conversation = thread_hash([*exchange.body["messages"], exchange.outcome.message])
    number = siblings.another(exchange.session_id, conversation)
    return turn_id(exchange.session_id, exchange.place.ordinal, conversation, number)


def _next_state(exchange: Exchange, state: NextState) -> Event:
    # Nothing of this may depend on the attempt: a request that is sent again says the same, byte for byte.
    data = NextStateObserved(
        next_state_id=state.next_state_id,
        session_id=exchange.session_id,
        turn_id=exchange.place.parent_turn_id or "",
        kind=state.kind,
        ordinal=state.place,
        role=state.role,
        content=state.content,
        tool_call_id=state.tool_call_id,
    )
    return _event(exchange, state.next_state_id, data)


def _turn(exchange: Exchange, name: str, group_id: str | None) -> TurnRecorded:
    tools = exchange.body.get("tools")
    return TurnRecorded(
        session_id=exchange.session_id,
        turn_id=name,
        parent_turn_id=exchange.place.parent_turn_id,
        ordinal=exchange.place.ordinal,
        kind=exchange.kind,
        messages=exchange.body["messages"],
        tools=tools if isinstance(tools, list) else [],
        response=_response(exchange.outcome.message),
        finish_reason=exchange.outcome.finish_reason,
        policy=PolicyRef(name=exchange.policy, spans=exchange.outcome.spans),
        sampling={field: value for field, value in exchange.body.items() if field not in NOT_SAMPLING},
        tokens=exchange.outcome.tokens,
        group_id=group_id,
        started_at=exchange.started_at,
        ended_at=exchange.ended_at,
        next_state_ids=[state.next_state_id for state in exchange.place.next_states],
        tenant=exchange.tenant,
        user_digest=_user_digest(exchange),
    )


def _user_digest(exchange: Exchange) -> str | None:
    """Of the user that the request names; `safety_identifier` is OpenAI's newer word for it."""
    said = exchange.body.get("user") or exchange.body.get("safety_identifier")
    if not isinstance(said, str):
        return None
    return digests.user_digest(said, tenant=exchange.tenant, secret=exchange.user_secret)


def _response(message: Message) -> Response:
    calls = message.get("tool_calls")
    return Response(
        content=text_of(message.get("content")),
        reasoning=_reasoning(message),
        tool_calls=[_tool_call(call) for call in calls] if isinstance(calls, list) else [],
    )


def _reasoning(message: Message) -> str | None:
    for field_name in ("reasoning", "reasoning_content"):
        text = message.get(field_name)
        if isinstance(text, str):
            return text
    return None


def _tool_call(call: dict[str, Any]) -> ToolCall:
    function = call.get("function") or {}
    name, arguments = function.get("name"), function.get("arguments")
    return ToolCall(
        id=call.get("id"),
        name=name if isinstance(name, str) else "",
        arguments=arguments if isinstance(arguments, str) else "",
    )


def _event(exchange: Exchange, event_id: str, data: EventData) -> Event:
    return new_event(data, id=event_id, source=SOURCE, time=exchange.ended_at)
