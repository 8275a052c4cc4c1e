"""Reading a chat completion request: what the gateway must know of it, and what it refuses.

Only what recording needs is checked; everything else is the model server's to accept or refuse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast, get_args

from aiohttp import web

from producers.gateway.access.callers import caller_of
from producers.gateway.refusal import BadRequest, name_of
from producers.gateway.sessions import Message, derived_session
from schemas.events import NextStateKind, TurnKind

OUR_FIELDS = frozenset({"session_id", "turn_type", "session_done", "next_state_kind", "no_record"})
"""Fields of a body that are for the gateway; the model server does not get them."""

_MAX_N = 128
"""Answers of one request, as OpenAI bounds them."""

MAX_MESSAGES = 10_000
"""Each is hashed and recorded; the longest conversations of agents have hundreds."""


@dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """A request that can be recorded. `derived` tells that its session was made up from its first messages, `recorded`
    whether it is to be recorded; `session_id` is the one on the log."""

    body: dict[str, Any]
    messages: list[Message]
    session_id: str
    derived: bool
    kind: TurnKind
    closes: bool
    next_state_kind: NextStateKind | None
    tenant: str | None = None
    recorded: bool = True


def chat_request(request: web.Request, body: dict[str, Any], kind: TurnKind = "main") -> ChatRequest:
    """The chat completion request that `body` and the headers are. `kind` is that of a turn which names none.

    Raises:
        BadRequest: it cannot be served or recorded as it is.
    """
    messages = _messages(body)
    given = request.headers.get("X-Session-Id")
    where = "X-Session-Id"
    if given is None and body.get("session_id") is not None:
        given, where = body["session_id"], "session_id"
    metadata = body.get("metadata")
    if given is None and isinstance(metadata, dict) and metadata.get("session_id") is not None:
        given, where = metadata["session_id"], "metadata.session_id"
    session_id = name_of(given, where) if given is not None else derived_session(messages, body.get("user"))
    caller = caller_of(request)
    try:
        session_id = caller.scoped(session_id)
    except ValueError as err:
        raise BadRequest(f"{where}: {err}", where) from None
    kind = cast(TurnKind, _choice(request, body, "X-Turn-Type", "turn_type", get_args(TurnKind)) or kind)
    next_state_kind = _choice(request, body, "X-Next-State-Kind", "next_state_kind", get_args(NextStateKind))
    closes = _choice(request, body, "X-Session-Done", "session_done", ("true", "false")) == "true"
    unrecorded = _choice(request, body, "X-No-Record", "no_record", ("true", "false")) == "true"
    for name in OUR_FIELDS:
        body.pop(name, None)
    return ChatRequest(
        body=body,
        messages=messages,
        session_id=session_id,
        derived=given is None,
        kind=kind,
        closes=closes,
        next_state_kind=cast("NextStateKind | None", next_state_kind),
        tenant=caller.tenant,
        recorded=not unrecorded and caller.recorded,
    )


def _messages(body: dict[str, Any]) -> list[Message]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages: a list of at least one message is needed", "messages")
    if len(messages) > MAX_MESSAGES:
        raise BadRequest(f"messages: {len(messages)} messages; at most {MAX_MESSAGES} are taken", "messages", 413)
    for place, message in enumerate(messages):
        if not isinstance(message, dict):
            raise BadRequest(f"messages[{place}]: each message is an object", f"messages[{place}]")
        if not isinstance(message.get("role"), str):
            raise BadRequest(f"messages[{place}].role: each message has a role", f"messages[{place}].role")
    tools = body.get("tools")
    n = body.get("n")
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= _MAX_N):
        raise BadRequest(f"n: a number of answers from 1 to {_MAX_N} is needed", "n")
    stream_options = body.get("stream_options")
    if stream_options is not None and not isinstance(stream_options, dict):
        raise BadRequest("stream_options: an object is needed", "stream_options")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise BadRequest("tools: a list of objects is needed", "tools")
    return messages


def _choice(
    request: web.Request, body: dict[str, Any], header: str, field: str, allowed: tuple[str, ...]
) -> str | None:
    """What the header says, else the field of the body."""
    given, where = request.headers.get(header), header
    if given is None and body.get(field) is not None:
        given, where = str(body[field]), field
    if given is not None and given.strip().lower() not in allowed:
        raise BadRequest(f"{where}: {' or '.join(allowed)}, not {given[:40]!r}", where)
    return given.strip().lower() if given is not None else None
