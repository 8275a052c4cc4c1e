"""A model server of a fixed delay, cheap enough to be no part of what is measured: `python -m benchmarks.fake_model`.

It speaks vLLM's dialect (render, generate, derender, chat completions, whole and streamed) and answers each question
with the same words. Asking the model takes the delay; what only translates takes nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable
from typing import Any

_PROMPT_IDS = list(range(100, 140))
_WORDS = ["word"] * 32
_IDS = list(range(200, 200 + len(_WORDS)))
_TOKEN_S = 0.001
"""Between two pieces of a stream."""


def _entries(ids: list[int]) -> dict[str, Any]:
    return {"content": [{"token": "word", "token_id": i, "logprob": -0.5, "top_logprobs": []} for i in ids]}


_HEAD = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "policy"}
_USAGE = {"prompt_tokens": len(_PROMPT_IDS), "completion_tokens": len(_IDS), "total_tokens": len(_PROMPT_IDS + _IDS)}
_TEXT = " ".join(_WORDS)
_CHOICE = {"index": 0, "message": {"role": "assistant", "content": _TEXT}, "finish_reason": "stop", "logprobs": None}
_SPANS = [{"version": "0", "start": 0, "end": len(_IDS)}]
_GENERATED = {
    "index": 0,
    "token_ids": _IDS,
    "text": _TEXT,
    "finish_reason": "stop",
    "stop_reason": None,
    "logprobs": _entries(_IDS),
    "weight_versions": _SPANS,
}
_ANSWERS: dict[bytes, dict[str, Any]] = {
    b"/v1/chat/completions/render": {"token_ids": _PROMPT_IDS, "sampling_params": {"max_tokens": len(_IDS)}},
    b"/v1/chat/completions/derender": {**_HEAD, "choices": [_CHOICE], "usage": _USAGE},
    b"/v1/chat/completions": {**_HEAD, "choices": [_CHOICE], "usage": _USAGE},
    b"/inference/v1/generate": {"request_id": "r", "choices": [_GENERATED]},
    b"/weight_info": {"weight_version": "0"},
    b"/v1/models": {"object": "list", "data": [{"id": "policy", "object": "model"}]},
}
_ASKED = (b"/v1/chat/completions", b"/inference/v1/generate")


def _whole(plain: dict[str, Any]) -> bytes:
    body = json.dumps(plain).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


_WHOLE = {path: _whole(plain) for path, plain in _ANSWERS.items()}
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _piece(text: str) -> bytes:
    data = f"data: {text}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def _generated(place: int) -> dict[str, Any]:
    last = place == len(_IDS) - 1
    choice = {"index": 0, "text": "word ", "token_ids": [_IDS[place]], "logprobs": _entries([_IDS[place]])}
    choice |= {"finish_reason": "stop" if last else None, "stop_reason": None}
    return {"choices": [choice | ({"weight_versions": _SPANS} if last else {})]}


def _chatted(place: int) -> dict[str, Any]:
    last = place == len(_IDS) - 1
    choice = {"index": 0, "delta": {"content": "word "}, "finish_reason": "stop" if last else None}
    return {**_HEAD, "object": "chat.completion.chunk", "choices": [choice]}


_STREAMS: dict[bytes, list[bytes]] = {
    path: [_piece(json.dumps(make(place))) for place in range(len(_IDS))] + [_piece("[DONE]") + b"0\r\n\r\n"]
    for path, make in {b"/inference/v1/generate": _generated, b"/v1/chat/completions": _chatted}.items()
}


class _Connection(asyncio.Protocol):
    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._buffer = bytearray()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end])
            length = _content_length(head)
            if len(self._buffer) < end + 4 + length:
                return
            body = bytes(self._buffer[end + 4 : end + 4 + length])
            del self._buffer[: end + 4 + length]
            self._answer(head.split(b" ", 2)[1], body)

    def _answer(self, path: bytes, body: bytes) -> None:
        streamed = path in _STREAMS and b'"stream": true' in body.replace(b'"stream":true', b'"stream": true')
        if streamed:
            pieces = _STREAMS[path]
            self._later(self._delay_s, lambda: self._write(_STREAM_HEAD + pieces[0]))
            for place, piece in enumerate(pieces[1:], 1):
                self._later(self._delay_s + place * _TOKEN_S, lambda piece=piece: self._write(piece))  # type: ignore[misc]
            return
        answer = _WHOLE.get(path, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        if path in _ASKED:
            self._later(self._delay_s, lambda: self._write(answer))
        else:
            self._write(answer)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._loop.call_later(seconds, act)

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


async def _serve(delay_s: float) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(delay_s), "127.0.0.1", 0, backlog=512)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay-s", type=float, default=0.02)
    asyncio.run(_serve(parser.parse_args().delay_s))
