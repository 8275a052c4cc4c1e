"""How an event travels: CloudEvents 1.0 in Kafka's binary mode.

Attributes are headers (`ce_id`, `ce_source`, `ce_type`, ...), the value is the UTF-8 JSON of the data, the key is
the session id. `ce_source` + `ce_id` is the dedupe key. Fields that this version does not know survive a read and
a write: they are kept in `Event.unknown` and merged back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from schemas.claim_check import BlobMissing, BlobStore
from schemas.depth import nested_deeply
from schemas.digests import canonical_json, clean_json, digest_of
from schemas.encoded_once import EncodedOnce
from schemas.events import EVENT_TYPES, TYPE_OF, EventData, TurnRecorded
from schemas.text import from_raw, raw_of, sanitise, sanitise_text
from schemas.topics import MAX_EVENT_BYTES
from schemas.unknown_fields import difference, merge

SPEC_VERSION = "1.0"
CONTENT_TYPE = b"application/json"

_REFUSED_ESCAPE = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
"""Where JSON has none of these escapes, and is UTF-8, its text has nothing to replace: neither may stand in it bare."""

_READABLE_DEPTH = 300
"""Writers of ours stop at `schemas.depth.MAX_DEPTH`; others may have gone on. At some 480 levels sanitising reaches
Python's limit of calls."""

_LATER_FIELDS = ("tenant", "redacted", "user_digest")

Headers = list[tuple[str, bytes]]


class MalformedEvent(ValueError):
    """A record that is no event of ours: what was wrong with it, for the dead letter."""


class ClaimCheckMissing(MalformedEvent):
    """The record's value is a claim check, and what it names is not there (yet), or was changed."""


class UnknownEventType(MalformedEvent):
    """The record names an event type that this version does not know."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event with its CloudEvents attributes.

    `time` is the source's clock, `recorded_time` the clock of whoever put it on the log; both ISO 8601 and neither
    orders anything. `unknown` holds data fields of a later version, `type` says which version it was read from.
    """

    id: str
    source: str
    type: str
    data: EventData
    time: str | None = None
    recorded_time: str | None = None
    subject: str | None = None
    causation_id: str | None = None
    unknown: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The partition key: everything of one session stays in order on one partition."""
        return self.data.session_id

    def content_digest(self) -> str:
        """Digest of the data alone: what must be equal when the same id arrives twice.

        `origin` is left out, in `raw` too: the same log imported under another file name says the same. Fields that
        came after the first release count only where they say something: an event that was recorded before they were
        there is the same event still.
        """
        plain = data_to_dict(self.data, self.unknown)
        plain.pop("origin", None)
        for name in _LATER_FIELDS:
            if not plain.get(name):
                plain.pop(name, None)
        if self.data.raw is not None:
            plain["raw"] = _without_origin(self.data.raw)
        return digest_of(plain)


@dataclass(frozen=True)
class WireRecord:
    """What goes on a topic."""

    key: bytes
    value: bytes
    headers: Headers


Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

UPCASTERS: dict[str, tuple[str, Upcaster]] = {}
"""Old event type -> (newer type, how its data become the newer's). Empty while every type is at v1."""


def utc_now() -> str:
    """Now, ISO 8601 with milliseconds and `Z`."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def new_event(
    data: EventData,
    *,
    id: str,
    source: str,
    time: str | None = None,
    causation_id: str | None = None,
    recorded_time: str | None = None,
) -> Event:
    """An event of today's version. `id` must be made of what the source cannot change (`schemas.digests`)."""
    return Event(
        id=id,
        source=source,
        type=TYPE_OF[type(data)],
        data=data,
        time=time,
        recorded_time=recorded_time or utc_now(),
        subject=getattr(data, "turn_id", None) or data.session_id,
        causation_id=causation_id,
    )


def data_to_dict(data: msgspec.Struct, unknown: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The JSON-like dict of `data` with the unknown fields merged back."""
    plain: dict[str, Any] = msgspec.to_builtins(data)
    return merge(plain, unknown) if unknown else plain


def encode(
    event: Event,
    blobs: BlobStore | None = None,
    *,
    recorded_time: str | None = None,
    once: EncodedOnce | None = None,
) -> WireRecord:
    """`event` as a Kafka record, stamped with `recorded_time` where it has none of its own. `once` makes it quicker for
    the turns of one session after another.

    Text that Postgres or UTF-8 refuses is replaced and the original kept in `raw`. A value over 1 MiB goes to
    `blobs` and the record carries its `dataref`.

    Raises:
        ValueError: the value is over 1 MiB and no `blobs` was given.
    """
    value = _value_of(event, once)
    headers = _attribute_headers(event, event.recorded_time or recorded_time)
    if len(value) > MAX_EVENT_BYTES:
        if blobs is None:
            raise ValueError(
                f"event {event.id} has {len(value)} bytes, over {MAX_EVENT_BYTES}; "
                "give a blob store so that it can go by claim check"
            )
        headers.append(("ce_dataref", blobs.put(value).encode("utf-8")))
        value = b"{}"
    return WireRecord(key=_header(event.key), value=value, headers=headers)


def decode(value: bytes | None, headers: Iterable[tuple[str, bytes]], blobs: BlobStore | None = None) -> Event:
    """The event of a Kafka record, upcast to today's version of its type.

    Raises:
        UnknownEventType: `ce_type` is unknown.
        ClaimCheckMissing: the blob that a `dataref` names is not there or was changed.
        MalformedEvent: a header is missing, or the value is no JSON or does not fit the type.
    """
    attributes = _attributes(headers)
    event_type = _required(attributes, "type")
    source, event_id = _required(attributes, "source"), _required(attributes, "id")
    dataref = attributes.get("dataref")
    if dataref is not None:
        if blobs is None:
            raise MalformedEvent(f"event {event_id} is a claim check ({dataref}) and no blob store is configured")
        try:
            value = blobs.get(dataref)
        except BlobMissing as err:
            raise ClaimCheckMissing(f"event {event_id}: {err}") from err
    plain = _parse(value)
    while event_type in UPCASTERS:
        event_type, upcast = UPCASTERS[event_type]
        plain = upcast(plain)
    struct = EVENT_TYPES.get(event_type)
    if struct is None:
        raise UnknownEventType(f"unknown event type {event_type!r}; known: {', '.join(sorted(EVENT_TYPES))}")
    try:
        data = msgspec.convert(plain, struct, strict=True)
    except msgspec.ValidationError as err:
        raise MalformedEvent(f"{event_type} {event_id}: {err}") from err
    unknown = difference(plain, msgspec.to_builtins(data))
    return Event(
        id=event_id,
        source=source,
        type=event_type,
        data=data,
        time=attributes.get("time"),
        recorded_time=attributes.get("recordedtime"),
        subject=attributes.get("subject"),
        causation_id=attributes.get("causationid"),
        unknown=unknown,
    )


def _without_origin(raw: str) -> str:
    try:
        original = from_raw(raw)
    except ValueError:  # not ours to read: another producer filled it, and it still tells one event from another
        return raw
    if isinstance(original, dict):
        original.pop("origin", None)
    return raw_of(original)


def _attribute_headers(event: Event, recorded_time: str | None) -> Headers:
    attributes = (
        ("ce_id", event.id),
        ("ce_source", event.source),
        ("ce_type", event.type),
        ("ce_specversion", SPEC_VERSION),
        ("ce_time", event.time),
        ("ce_subject", event.subject),
        ("ce_partitionkey", event.key),
        ("ce_causationid", event.causation_id),
        ("ce_recordedtime", recorded_time),
    )
    headers: Headers = [("content-type", CONTENT_TYPE)]
    headers += [(name, _header(text)) for name, text in attributes if text is not None]
    return headers


@lru_cache(maxsize=1024)
def _header(text: str) -> bytes:
    """Source, type, session and time are those of the event before, most of the time."""
    return sanitise_text(text).encode("utf-8")


def _attributes(headers: Iterable[tuple[str, bytes]]) -> dict[str, str]:
    attributes: dict[str, str] = {}
    for name, data in headers:
        if name.startswith("ce_"):
            try:
                attributes[name[3:]] = data.decode("utf-8")
            except UnicodeDecodeError as err:
                raise MalformedEvent(f"header {name} is not UTF-8") from err
    return attributes


def _required(attributes: Mapping[str, str], name: str) -> str:
    text = attributes.get(name)
    if not text:
        raise MalformedEvent(f"header ce_{name} is missing")
    return text


def _value_of(event: Event, once: EncodedOnce | None) -> bytes:
    """The data as canonical JSON, clean."""
    data = event.data
    if not event.unknown:
        if once is not None and isinstance(data, TurnRecorded) and (parts := once.messages_of(data)) is not None:
            if clean_json(msgspec.structs.replace(data, messages=[])) is not None:
                return canonical_json(msgspec.structs.replace(data, messages=parts))
        elif (value := clean_json(data)) is not None:
            return value
    return canonical_json(_sanitised(data_to_dict(data, event.unknown)))


def _parse(value: bytes | None) -> dict[str, Any]:
    """The data of a record, clean.

    Raises:
        MalformedEvent: it is no JSON object, or nested too deeply.
    """
    if value is None:
        raise MalformedEvent("the record has no value")
    try:
        plain = _loads(value)
    except (UnicodeDecodeError, json.JSONDecodeError) as err:
        raise MalformedEvent(f"the value is not JSON: {err}") from err
    except RecursionError as err:  # where the parser gives up depends on how deep the caller is; the answer must not
        raise MalformedEvent(f"the value is nested too deeply (over {_READABLE_DEPTH} levels)") from err
    if not isinstance(plain, dict):
        raise MalformedEvent(f"the value is a JSON {type(plain).__name__}, not an object")
    # Token ids are as many as all other values together, and their type is checked anyway.
    if nested_deeply([item for name, item in plain.items() if name != "tokens"], _READABLE_DEPTH):
        raise MalformedEvent(f"the value is nested too deeply (over {_READABLE_DEPTH} levels)")
    return _sanitised(plain) if _REFUSED_ESCAPE.search(value) else plain


def _loads(value: bytes) -> Any:
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # The standard parser, since a lone surrogate escape is to be replaced, not refused.
        return json.loads(value)


def _sanitised(plain: dict[str, Any]) -> dict[str, Any]:
    clean, changed = sanitise(plain)
    if changed:
        clean["sanitised"] = True
        clean["raw"] = raw_of(plain)
    result: dict[str, Any] = clean
    return result
