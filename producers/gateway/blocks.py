"""An answer as a row of blocks (reasoning, text, tool calls), which is how Anthropic's Messages and OpenAI's Responses
tell it; chat completions tell it as deltas. Pure.

`Blocks.take` turns each chunk into steps: a block opens, gets a piece, closes. A whole answer is taken as one chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["reasoning", "text", "tool"]


@dataclass
class Block:
    """One block of the answer so far; `text` is a tool call's raw arguments."""

    number: int
    kind: Kind
    text: str = ""
    call_id: str = ""
    name: str = ""
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    """Of a text block: the entries that the caller asked for."""


@dataclass(frozen=True)
class Step:
    """What happens to a block."""

    verb: Literal["open", "add", "close"]
    block: Block
    piece: str = ""


@dataclass
class Blocks:
    """The blocks of one choice, and how it ended."""

    all: list[Block] = field(default_factory=list)
    finish_reason: str | None = None
    stop_string: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    _open: Block | None = None
    _calls: dict[int, Block] = field(default_factory=dict)

    def take(self, chunk: dict[str, Any]) -> list[Step]:
        """The steps that a chat.completion.chunk (or a whole chat.completion) makes."""
        usage = chunk.get("usage") or {}
        self.prompt_tokens = usage.get("prompt_tokens") or self.prompt_tokens
        self.completion_tokens = usage.get("completion_tokens") or self.completion_tokens
        steps: list[Step] = []
        for choice in chunk.get("choices") or []:
            if choice.get("index", 0) != 0:
                continue
            steps += self._delta(choice.get("delta") or choice.get("message") or {})
            entries = (choice.get("logprobs") or {}).get("content") or []
            if entries and self._open is not None and self._open.kind == "text":
                self._open.logprobs += entries
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            if isinstance(choice.get("stop_reason"), str):
                self.stop_string = choice["stop_reason"]
        return steps

    def end(self) -> list[Step]:
        """Close what is open."""
        closing, self._open = self._open, None
        return [Step("close", closing)] if closing is not None else []

    def _delta(self, delta: dict[str, Any]) -> Iterator[Step]:
        yield from self._piece("reasoning", delta.get("reasoning") or delta.get("reasoning_content"))
        yield from self._piece("text", delta.get("content"))
        for place, call in enumerate(delta.get("tool_calls") or []):
            function = call.get("function") or {}
            index = call.get("index", place)
            if index not in self._calls:
                self._calls[index] = block = self._new("tool")
                block.call_id, block.name = call.get("id") or f"call_{index}", function.get("name") or ""
                yield from self._begin(block)
            if function.get("arguments"):
                yield _add(self._calls[index], function["arguments"])

    def _piece(self, kind: Kind, text: Any) -> Iterator[Step]:
        if not isinstance(text, str) or not text:
            return
        if self._open is None or self._open.kind != kind:
            yield from self._begin(self._new(kind))
        assert self._open is not None
        yield _add(self._open, text)

    def _new(self, kind: Kind) -> Block:
        block = Block(len(self.all), kind)
        self.all.append(block)
        return block

    def _begin(self, block: Block) -> Iterator[Step]:
        yield from self.end()
        self._open = block
        yield Step("open", block)


def _add(block: Block, piece: str) -> Step:
    block.text += piece
    return Step("add", block, piece)
