"""Reading a request's body as JSON, within bounds of size, time, number of values and depth: none stalls the others.

Parsing holds the interpreter, in a thread too, so what bounds the stall is how much there is to make. As measured
on one core: 64 MiB of one text take 0.2 s, but 64 MiB of short lists 20 s and gigabytes of memory.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

from aiohttp import web

from producers.gateway.keys import CONFIG
from producers.gateway.refusal import BadRequest
from schemas.depth import MAX_DEPTH, nested_deeply

MAX_VALUES = 1_000_000
"""Commas and opening brackets of a body, those within texts too: they are counted before anything is parsed. A prompt
of nearly a million token ids fits; no prose comes near, and a picture in base64 has none."""
_LARGE_BYTES = 256 << 10
"""From here a body is parsed in a thread, where the interpreter can turn to other requests between two values. Below, a
thread costs more than the work."""
_INT64 = range(-(1 << 63), 1 << 64)
"""The integers that the event's JSON can hold."""


async def body_of(request: web.Request) -> dict[str, Any]:
    """The request's JSON object.

    Raises:
        BadRequest: it is none, too large or too slow, or cannot be recorded.
    """
    config = request.app[CONFIG]
    try:
        async with asyncio.timeout(config.body_timeout_s):
            data = await request.read()
    except web.HTTPRequestEntityTooLarge as err:
        raise BadRequest(f"the body is over {config.max_body_bytes} bytes", status=413) from err
    except TimeoutError as err:
        raise BadRequest(f"the body was not here after {config.body_timeout_s:g} s", status=408) from err
    return parse(data) if len(data) < _LARGE_BYTES else await asyncio.to_thread(parse, data)


def parse(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`.

    Raises:
        BadRequest: it is none, has too many values or too many levels, or a number that no event can hold.
    """
    if sum(data.count(sign) for sign in (b",", b"[", b"{")) > MAX_VALUES:
        raise BadRequest(f"the body has too many values (over {MAX_VALUES} commas and brackets)", status=413)
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


def _integer(digits: str) -> int:
    number = int(digits) if len(digits) <= 20 else None
    if number is None or number not in _INT64:
        raise BadRequest(f"the body has an integer of more than 64 bits ({digits[:24]}…)")
    return number


def _no_number(name: str) -> NoReturn:
    raise BadRequest(f"the body has {name}, which is no JSON")
