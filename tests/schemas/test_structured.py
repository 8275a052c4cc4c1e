"""Events at rest: what stood on the log is read back the same, and what is none is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.envelope import Event, MalformedEvent, decode, encode, new_event
from schemas.events import NextStateObserved, PolicyRef, Response, TurnRecorded
from schemas.structured import LogRecord, from_line, is_strict_json, to_line

LOGTIME = "2026-12-01T00:00:00.000000Z"
TEXTS = st.text(max_size=20) | st.sampled_from(["a\x00b", "\ud800", "\U0001f600", "\u2028\n", '"\\'])


def record(event: Event) -> LogRecord:
    one = encode(event)
    return LogRecord(topic="t", partition=3, offset=7, time=LOGTIME, headers=list(one.headers), value=one.value)


@given(content=TEXTS, reason=TEXTS, time=st.none() | st.just("2026-12-01T00:00:00+01:00"), temperature=st.floats())
def test_what_stood_on_the_log_is_read_back(content: str, reason: str, time: str | None, temperature: float) -> None:
    data = TurnRecorded(
        session_id="s",
        turn_id="t",
        ordinal=0,
        messages=[{"role": "user", "content": content}],
        response=Response(content=content, reasoning=reason),
        finish_reason="stop",
        policy=PolicyRef(name="policy"),
        sampling={"temperature": temperature},
    )
    stood = record(new_event(data, id="e", source="test", time=time, causation_id="c"))
    line = to_line(stood)
    assert b"\n" not in line
    assert from_line(line) == decode(stood.value, stood.headers)
    shown = json.loads(line)
    assert (shown["logtopic"], shown["logpartition"], shown["logoffset"], shown["logtime"]) == ("t", 3, 7, LOGTIME)


@pytest.mark.parametrize(
    ("value", "strict"),
    [
        (b'{"a": 1}', True),
        (b'{"a":\n1}', True),
        (b'{"a": "\\ud83d\\ude00"}', True),
        (b'{"a": "\\ud800"}', False),
        (b'{"a": NaN}', False),
        (b'{"a": "\xff"}', False),
        (b'{"a": "\x01"}', False),
        (b"\xef\xbb\xbf{}", False),
        (b"{", False),
        (b"[" * 100_000, False),
        ('{"a": 1}'.encode("utf-16"), False),
    ],
)
def test_strict_json_is_told_from_what_some_readers_refuse(value: bytes, strict: bool) -> None:
    assert is_strict_json(value) is strict


@pytest.mark.parametrize("text", ["NaN", '"\\ud800"', "1\n"])
def test_data_of_another_producer_are_kept_byte_for_byte(text: str) -> None:
    state = NextStateObserved(next_state_id="n", session_id="s", turn_id="t", kind="user_reply", role="?")
    one = record(new_event(state, id="e", source="test"))
    value = one.value.replace(b'"?"', b'"?","later":' + text.encode())
    foreign = LogRecord(topic="t", partition=0, offset=0, time=LOGTIME, headers=one.headers, value=value)
    read, stood = from_line(to_line(foreign)), decode(value, one.headers)
    assert repr(read) == repr(stood)
    assert "later" in read.unknown


@pytest.mark.parametrize(
    ("line", "match"),
    [
        (b"", "no JSON object"),
        (b"[1]", "no JSON object"),
        (b'{"id": "e"', "no JSON object"),
        (b'{"id": "e"}', "neither `data` nor `data_base64`"),
        (b'{"id": "e", "data_base64": "%"}', "no base64"),
        (b'{"id": 7, "data": {}}', "attribute id is no text"),
        (b'{"id": "e", "data": {}}', "ce_type is missing"),
        (b'{"id": "e", "source": "s", "type": "other", "data": {}}', "unknown event type"),
        (b'{"id": "e", "source": "s", "type": "hindstream.session.closed.v1", "data": [1]}', "not an object"),
    ],
)
def test_what_is_no_event_is_refused_by_name(line: bytes, match: str) -> None:
    with pytest.raises(MalformedEvent, match=match):
        from_line(line)


def test_any_cloud_event_of_our_types_is_one() -> None:
    """As another producer's tools write them: pretty order, extensions, no place on a log."""
    line: dict[str, Any] = {
        "specversion": "1.0",
        "type": "hindstream.session.closed.v1",
        "source": "/somebody",
        "id": "1",
        "traceparent": "00-ab",
        "datacontenttype": "application/json",
        "data": {"session_id": "s"},
    }
    event = from_line(json.dumps(line).encode())
    assert (event.source, event.id, event.key) == ("/somebody", "1", "s")
