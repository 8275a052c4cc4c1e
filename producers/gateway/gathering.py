"""Answers that grow: what of a stream is recorded, gathered while its pieces go out. Pure.

The message is put together from the deltas that the caller gets, the tokens are those that the engine says. Whenever
it ends, and however, `outcomes` is what came of it so far.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from producers.gateway.answers import finish_reason, whole_logprobs
from producers.gateway.turns import Outcome
from schemas.events import FinishReason, Tokens, VersionSpan


@dataclass
class Candidate:
    """One choice of the answer."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    finish_reason: str | None = None

    def add_delta(self, delta: dict[str, Any]) -> None:
        """Take in a delta of a chat.completion.chunk."""
        if isinstance(delta.get("content"), str):
            self.content.append(delta["content"])
        reasoning = delta.get("reasoning") or delta.get("reasoning_content")
        if isinstance(reasoning, str):
            self.reasoning.append(reasoning)
        for piece in delta.get("tool_calls") or []:
            call = self.tool_calls.setdefault(piece.get("index", 0), {"id": None, "name": "", "arguments": ""})
            function = piece.get("function") or {}
            call["id"] = call["id"] or piece.get("id")
            call["name"] += function.get("name") or ""
            call["arguments"] += function.get("arguments") or ""

    def add_tokens(self, ids: list[int], logprobs: list[float | None]) -> None:
        """Take in the tokens of one piece."""
        self.ids += ids
        self.logprobs += logprobs

    def message(self) -> dict[str, Any]:
        """The assistant message so far, as a whole answer would have it."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self.content)}
        if self.reasoning:
            message["reasoning"] = "".join(self.reasoning)
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                }
                for _, call in sorted(self.tool_calls.items())
            ]
            message["content"] = message["content"] or None
        return message


@dataclass
class Gathered:
    """All choices of one answer, and the id under which the caller knows it."""

    prompt_ids: list[int] = field(default_factory=list)
    candidates: dict[int, Candidate] = field(default_factory=dict)
    completion_id: str | None = None
    failed: bool = False
    """Whether the server said in the stream that it failed."""

    def candidate(self, index: int) -> Candidate:
        """The choice with this index, from its first piece on."""
        return self.candidates.setdefault(index, Candidate())

    @property
    def finished(self) -> bool:
        """Whether every choice that began has ended of itself."""
        return bool(self.candidates) and all(one.finish_reason is not None for one in self.candidates.values())

    @property
    def completion_tokens(self) -> int:
        """Tokens of all choices so far; 0 where the server says none."""
        return sum(len(one.ids) for one in self.candidates.values())

    def outcomes(self, cut: FinishReason) -> list[Outcome]:
        """One a choice. `cut` is recorded for those that did not end of themselves."""
        if not self.candidates:
            self.candidate(0)
        return [self._outcome(one, cut) for _, one in sorted(self.candidates.items())]

    def _outcome(self, one: Candidate, cut: FinishReason) -> Outcome:
        reason = cut if one.finish_reason is None else finish_reason(one.finish_reason)
        if not one.ids:
            return Outcome(message=one.message(), finish_reason=reason)
        tokens = Tokens(
            source="engine",
            prompt_ids=self.prompt_ids,
            response_ids=one.ids,
            response_logprobs=whole_logprobs(one.ids, one.logprobs),
        )
        # The engine names the versions with the last token, so of an answer that was cut they are not known.
        spans = one.spans or [VersionSpan(version=None, start=0, end=len(one.ids))]
        return Outcome(message=one.message(), finish_reason=reason, tokens=tokens, spans=spans)
