"""Server-sent events are read however the network cuts them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from producers.gateway import sse

STREAM = 'data: {"a": 1}\r\n\r\n: a comment\n\nevent: x\ndata: ü\ndata:zwei\n\ndata: [DONE]\n\ndata: cut'.encode()


async def pieces_of(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_events_are_the_same_in_pieces_of_any_size(size: int) -> None:
    found = [data async for data in sse.data_of(pieces_of(STREAM, size))]
    assert found == ['{"a": 1}', "ü\nzwei", "[DONE]"]


async def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "_MAX_EVENT", 1000)
    with pytest.raises(ValueError, match="1000 bytes"):
        [data async for data in sse.data_of(pieces_of(b"data: " + b"x" * 5000, 100))]


async def test_what_is_written_is_read_again() -> None:
    written = sse.event({"text": "a\nb\u2028\udc00"}, "name") + sse.comment("not for clients") + sse.event(sse.DONE)
    found = [data async for data in sse.data_of(pieces_of(written, 5))]
    assert found == ['{"text":"a\\nb\u2028\ufffd"}', "[DONE]"]
