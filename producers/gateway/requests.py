"""Reading a chat completion request: what the gateway must know of it, and what it refuses.

Only what recording needs is checked; everything else is the model server's to accept or refuse.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn, cast, get_args

from aiohttp import web

from producers.gateway.access.callers import caller_of
from producers.gateway.sessions import Message, derived_session
from schemas.depth import MAX_DEPTH, nested_deeply
from schemas.events import NextStateKind, TurnKind

OUR_FIELDS = frozenset({"session_id", "turn_type", "session_done", "next_state_kind", "no_record"})
"""Fields of a body that are for the gateway; the model server does not get them."""

_MAX_SESSION_ID = 256
_MAX_N = 128
"""Answers of one request, as OpenAI bounds them."""

_INT64 = range(-(1 << 63), 1 << 64)
"""The integers that the event's JSON can hold."""


class BadRequest(ValueError):
    """The request is refused with `status`; `field` is the one at fault, None where it is the body as a whole."""

    def __init__(self, message: str, field: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.field = field
        self.status = status


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


async def read_body(request: web.Request, max_bytes: int) -> dict[str, Any]:
    """The request's JSON object. `max_bytes` is the application's bound, to be named where it is exceeded.

    Raises:
        BadRequest: it is none, or cannot be recorded.
    """
    return _parse(await _data(request, max_bytes))


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
    session_id = _session_id(given, where) if given is not None else derived_session(messages, body.get("user"))
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


async def _data(request: web.Request, max_bytes: int) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as err:
        raise BadRequest(f"the body is over {max_bytes} bytes", status=413) from err


def _parse(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data, parse_int=_integer, parse_constant=_no_number)
    except BadRequest:
        raise
    except RecursionError as err:
        raise BadRequest("the body is nested too deeply") from err
    except ValueError as err:
        raise BadRequest(f"the body is not JSON: {err}") from err
    if not isinstance(body, dict):
        raise BadRequest("the body is no JSON object")
    if nested_deeply(body):
        raise BadRequest(f"the body is nested too deeply (over {MAX_DEPTH} levels)")
    return body


def _messages(body: dict[str, Any]) -> list[Message]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages: a list of at least one message is needed", "messages")
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


def _session_id(given: Any, where: str) -> str:
    if not isinstance(given, str) or not 1 <= len(given) <= _MAX_SESSION_ID or not given.isprintable():
        raise BadRequest(f"{where}: 1 to {_MAX_SESSION_ID} printable characters are needed", where)
    return given


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


def _integer(digits: str) -> int:
    number = int(digits) if len(digits) <= 20 else None
    if number is None or number not in _INT64:
        raise BadRequest(f"the body has an integer of more than 64 bits ({digits[:24]}…)")
    return number


def _no_number(name: str) -> NoReturn:
    raise BadRequest(f"the body has {name}, which is no JSON")
