"""Events at rest: CloudEvents' JSON format, one object an event, with the data exactly as they stand on the log.

Beside the attributes of the event there are those of its place on the log: `logtopic`, `logpartition`, `logoffset`
and `logtime` (when the log got it). Data that are strict JSON stand as they are under `data`; others (NaN, the escape
of a lone surrogate) byte for byte as base64 under `data_base64`, as CloudEvents has it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from schemas.envelope import CONTENT_TYPE, Event, Headers, MalformedEvent, decode

SPEC_MARK = "specversion"
LOG_ATTRIBUTES = ("logtopic", "logpartition", "logoffset", "logtime")

_MINE = frozenset({"data", "data_base64", "datacontenttype", "logheaders", *LOG_ATTRIBUTES})
_PREFIX = "ce_"
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, kw_only=True)
class LogRecord:
    """An event of ours as it stands on a log. `value` is what the record says, a claim check already fetched;
    `time` is when the log got it, ISO 8601."""

    topic: str
    partition: int
    offset: int
    time: str
    headers: Headers
    value: bytes


def is_strict_json(value: bytes) -> bool:
    """Whether every JSON reader takes these bytes."""
    # The parser passes over text without reading it where it need not make a string of it.
    escapes = b"\\ud" in value or b"\\uD" in value
    try:
        msgspec.json.decode(value, type=Any if escapes else msgspec.Raw)
        value.decode("utf-8")
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return False
    return True


def attributes_of(headers: Iterable[tuple[str, bytes]]) -> dict[str, str]:
    """The event's attributes, without `dataref`: the value was fetched.

    Raises:
        UnicodeDecodeError: one is not UTF-8; `schemas.envelope.decode` refuses such a record.
    """
    found = {name[len(_PREFIX) :]: data.decode("utf-8") for name, data in headers if name.startswith(_PREFIX)}
    found.pop("dataref", None)
    return found


def other_headers(headers: Iterable[tuple[str, bytes]]) -> list[list[str]]:
    """[[name, base64]] of the headers that are no attributes of the event."""
    return [
        [name, base64.b64encode(data).decode("ascii")]
        for name, data in headers
        if not name.startswith(_PREFIX) and (name, data) != ("content-type", CONTENT_TYPE)
    ]


def to_line(record: LogRecord) -> bytes:
    """One line of JSON, without its end, for a record that `schemas.envelope.decode` reads."""
    fields: dict[str, Any] = dict(attributes_of(record.headers))
    fields |= {
        "datacontenttype": CONTENT_TYPE.decode(),
        "logtopic": record.topic,
        "logpartition": record.partition,
        "logoffset": record.offset,
        "logtime": record.time,
    }
    if others := other_headers(record.headers):
        fields["logheaders"] = others
    if is_strict_json(record.value):
        # A line's end may stand in JSON only between two tokens.
        fields["data"] = msgspec.Raw(record.value.replace(b"\n", b" ").replace(b"\r", b" "))
    else:
        fields["data_base64"] = base64.b64encode(record.value).decode("ascii")
    return _encoder.encode(fields)


def from_line(line: bytes) -> Event:
    """The event of a line that `to_line` wrote, or of any CloudEvent in JSON format whose type is one of ours.

    Raises:
        MalformedEvent: it is none.
    """
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        value = bytes(fields["data"]) if "data" in fields else None
        attributes = {name: msgspec.json.decode(raw) for name, raw in fields.items() if name != "data"}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as err:
        raise MalformedEvent(f"the line is no JSON object: {err}") from err
    if value is None:
        value = _from_base64(attributes.get("data_base64"))
    return event_of(attributes, value)


def event_of(attributes: Mapping[str, Any], value: bytes) -> Event:
    """The event of these attributes (null where it has none) and these data.

    Raises:
        MalformedEvent: as `schemas.envelope.decode`.
    """
    headers: Headers = []
    for name, text in attributes.items():
        if name in _MINE or text is None:
            continue
        if not isinstance(text, str):
            raise MalformedEvent(f"attribute {name} is no text")
        headers.append((_PREFIX + name, text.encode("utf-8")))
    return decode(value, headers)


def _from_base64(text: Any) -> bytes:
    if not isinstance(text, str):
        raise MalformedEvent("there is neither `data` nor `data_base64`")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as err:
        raise MalformedEvent(f"`data_base64` is no base64: {err}") from err
