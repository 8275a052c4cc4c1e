"""Events survive the wire: headers, unknown fields, refused text, claim checks, and every version ever released."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.claim_check import BlobMissing, DirectoryBlobStore
from schemas.digests import canonical_json
from schemas.encoded_once import EncodedOnce
from schemas.envelope import (
    Event,
    MalformedEvent,
    UnknownEventType,
    WireRecord,
    data_to_dict,
    decode,
    encode,
    new_event,
)
from schemas.events import EVENT_TYPES, NextStateObserved, PolicyRef, Response, TurnRecorded
from schemas.text import from_raw
from schemas.topics import MAX_EVENT_BYTES

SAMPLES = Path(__file__).parents[2] / "schemas" / "samples"


def turn(content: str = "Paris.", session_id: str = "s", **more: object) -> TurnRecorded:
    return TurnRecorded(
        session_id=session_id,
        turn_id="t",
        ordinal=0,
        messages=[{"role": "user", "content": content}],
        response=Response(content=content),
        finish_reason="stop",
        policy=PolicyRef(name="policy"),
        **more,  # type: ignore[arg-type]
    )


def event(data: TurnRecorded | NextStateObserved, **more: object) -> Event:
    return new_event(data, id="e1", source="test", **more)  # type: ignore[arg-type]


def test_headers_are_cloudevents_in_binary_mode() -> None:
    record = encode(event(turn(), time="2026-11-01T10:00:00Z", causation_id="c", recorded_time="2026-11-01T10:00:01Z"))
    headers = dict(record.headers)
    assert headers == {
        "content-type": b"application/json",
        "ce_id": b"e1",
        "ce_source": b"test",
        "ce_type": b"hindstream.turn.recorded.v1",
        "ce_specversion": b"1.0",
        "ce_time": b"2026-11-01T10:00:00Z",
        "ce_subject": b"t",
        "ce_partitionkey": b"s",
        "ce_causationid": b"c",
        "ce_recordedtime": b"2026-11-01T10:00:01Z",
    }
    assert record.key == b"s"


@pytest.mark.parametrize("event_type", sorted(EVENT_TYPES))
def test_the_stored_sample_of_every_version_decodes_for_ever(event_type: str) -> None:
    stored = json.loads((SAMPLES / f"{event_type}.json").read_text())
    headers = [(name, text.encode()) for name, text in stored["headers"]]
    read = decode(json.dumps(stored["value"]).encode(), headers)
    assert read.type == event_type
    assert read.key == stored["key"]
    assert read.unknown == {}
    assert data_to_dict(read.data) == stored["value"]
    defaults = {f.name for f in msgspec.structs.fields(type(read.data)) if not f.required}
    unset = {name for name in defaults - {"sanitised", "raw"} if stored["value"][name] in (None, [], {})}
    assert unset == set(), "a sample fills every field, so that each is proved to be read"


def test_unknown_fields_survive_a_read_and_a_write() -> None:
    record = encode(event(turn(tools=[{"a": 1}])))
    plain = json.loads(record.value)
    plain["later"] = {"x": [1, 2]}
    plain["policy"]["region"] = "north"
    plain["response"]["tool_calls"] = [{"id": "c", "name": "f", "arguments": "{}", "index": 4}]
    read = decode(json.dumps(plain).encode(), record.headers)
    assert read.unknown == {
        "later": {"x": [1, 2]},
        "policy": {"region": "north"},
        "response": {"tool_calls": {"0": {"index": 4}}},
    }
    assert json.loads(encode(read).value) == plain


@pytest.mark.parametrize("text", ["a\x00b", "\ud800 alone", "\udfff\x00"])
def test_refused_text_is_replaced_one_for_one_and_the_original_kept(text: str) -> None:
    original = turn(text)
    read = decode(*_wire(encode(event(original))))
    assert isinstance(read.data, TurnRecorded)
    content = read.data.messages[0]["content"]
    assert len(content) == len(text)
    assert "\x00" not in content
    content.encode("utf-8")
    assert read.data.sanitised
    assert read.data.raw is not None
    assert from_raw(read.data.raw)["messages"][0]["content"] == text


def test_a_foreign_producers_nul_is_replaced_on_reading() -> None:
    record = encode(event(turn("ab")))
    read = decode(record.value.replace(b'"content":"ab"', rb'"content":"a\u0000b"'), record.headers)
    assert isinstance(read.data, TurnRecorded)
    assert read.data.response.content == "a\ufffdb"
    assert read.data.sanitised


def test_an_event_over_the_limit_goes_whole_by_claim_check(tmp_path: Path) -> None:
    blobs = DirectoryBlobStore(tmp_path)
    long = "x" * (MAX_EVENT_BYTES + 1)
    record = encode(event(turn(long)), blobs)
    assert len(record.value) < 100
    read = decode(*_wire(record), blobs)
    assert isinstance(read.data, TurnRecorded)
    assert read.data.response.content == long
    with pytest.raises(MalformedEvent, match="no blob store"):
        decode(*_wire(record))
    with pytest.raises(ValueError, match="claim check"):
        encode(event(turn(long)))


def test_a_changed_or_missing_blob_is_named(tmp_path: Path) -> None:
    blobs = DirectoryBlobStore(tmp_path)
    record = encode(event(turn("x" * (MAX_EVENT_BYTES + 1))), blobs)
    (blob,) = (p for p in tmp_path.rglob("*") if p.is_file())
    blob.write_bytes(b"{}")
    with pytest.raises(MalformedEvent, match="was changed"):
        decode(*_wire(record), blobs)
    blob.unlink()
    with pytest.raises(MalformedEvent, match="is not in"):
        decode(*_wire(record), blobs)
    with pytest.raises(BlobMissing):
        blobs.get("sha256:../../etc/passwd")


def test_an_events_size_is_never_cut(tmp_path: Path) -> None:
    exactly = turn("x")
    room = MAX_EVENT_BYTES - len(encode(event(exactly)).value)
    fitting = turn("x" * (1 + room // 2))
    assert len(encode(event(fitting)).value) <= MAX_EVENT_BYTES
    assert decode(*_wire(encode(event(fitting)))).data == fitting


@pytest.mark.parametrize(
    ("value", "drop", "match"),
    [
        (None, "", "no value"),
        (b"{", "", "not JSON"),
        (b"\xff\xfe", "", "not JSON"),
        (b"[1]", "", "not an object"),
        (b"{}", "", "missing required field"),
        (b"{}", "ce_id", "ce_id is missing"),
        (b"{}", "ce_source", "ce_source is missing"),
        (b"{}", "ce_type", "ce_type is missing"),
        (b"[" * 100_000, "", "nested too deeply"),
    ],
)
def test_poison_is_named(value: bytes | None, drop: str, match: str) -> None:
    headers = [(name, data) for name, data in encode(event(turn())).headers if name != drop]
    with pytest.raises(MalformedEvent, match=match):
        decode(value, headers)


@pytest.mark.parametrize(("levels", "readable"), [(100, True), (250, True), (350, False), (950, False)])
def test_how_deep_a_record_may_be_does_not_depend_on_the_stack(levels: int, readable: bool) -> None:
    record = encode(event(turn("x", tools=[{"a": "DEEP"}])))
    value = record.value.replace(b'"DEEP"', b"[" * levels + b"]" * levels)
    if readable:
        assert decode(value, record.headers).data.session_id == "s"
    else:
        with pytest.raises(MalformedEvent, match="nested too deeply"):
            decode(value, record.headers)


@given(
    content=st.text() | st.sampled_from(["\\u0000", "a\x00", "\ud800", "\\ud800"]),
    more=st.dictionaries(
        st.text(max_size=4), st.none() | st.booleans() | st.integers() | st.floats() | st.text(), max_size=3
    ),
)
def test_the_quick_way_writes_what_the_thorough_way_writes(content: str, more: dict[str, object]) -> None:
    """An unknown field, which says nothing, takes the thorough way."""
    data = turn(content, sampling=more)
    try:
        thorough = encode(dataclasses.replace(event(data), unknown={"tools": {}}))
    except (ValueError, OverflowError):
        with pytest.raises((ValueError, OverflowError)):
            encode(event(data))
        return
    assert encode(event(data)).value == thorough.value
    once = EncodedOnce()
    longer = [*data.messages, {"role": "assistant", "content": "plain"}, *data.messages]
    for one in (data, msgspec.structs.replace(data, messages=longer), turn(content, session_id="other"), data):
        assert encode(event(one), once=once).value == encode(event(one)).value


def test_an_unknown_type_is_told_apart() -> None:
    record = encode(event(turn()))
    headers = [(n, b"hindstream.turn.recorded.v9" if n == "ce_type" else d) for n, d in record.headers]
    with pytest.raises(UnknownEventType, match=r"v9.*known"):
        decode(record.value, headers)


@given(st.text(), st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_text_and_floats_round_trip(text: str, logprobs: list[float]) -> None:
    data = NextStateObserved(next_state_id="n", session_id="s", turn_id="t", kind="user_reply", content=text)
    read = decode(*_wire(encode(event(data)))).data
    assert isinstance(read, NextStateObserved)
    if not read.sanitised:
        assert read == data
    assert json.loads(canonical_json(logprobs)) == logprobs


def test_the_digest_tells_a_repeat_from_a_conflict() -> None:
    first, again, other = event(turn("a")), event(turn("a"), time="2026-11-01T10:00:00Z"), event(turn("b"))
    assert first.content_digest() == again.content_digest()
    assert first.content_digest() != other.content_digest()
    through_the_wire = decode(*_wire(encode(event(turn("a\x00")))))
    assert through_the_wire.content_digest() == decode(*_wire(encode(event(turn("a\x00"))))).content_digest()


def _wire(record: WireRecord) -> tuple[bytes, list[tuple[str, bytes]]]:
    return record.value, record.headers
