"""What the model server answered, as the caller gets it and as it is recorded. Pure.

The caller gets what vLLM's own chat endpoint would have said: derender gives the text of all tokens, so here the text
ends where a stop token or a stop string ends it. The recorded tokens stay those that were sampled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from producers.gateway.turns import Outcome
from schemas.events import FinishReason, Tokens, VersionSpan

_FINISH: dict[str | None, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "repetition": "length",
    "abort": "aborted",
}
"""How servers say why they stopped. What is not here (`content_filter`, null) is no whole answer: `error`."""

_NO_LOGPROB = -9999.0
"""What vLLM writes for a log-prob that is missing, NaN or minus infinity: JSON has none of these."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The chat.completion object for the caller, and what is recorded of it."""

    completion: dict[str, Any]
    outcomes: list[Outcome]
    """One a choice, in the order of the choices."""


def with_tokens(
    body: dict[str, Any], prompt: dict[str, Any], generated: dict[str, Any], completion: dict[str, Any]
) -> Answer:
    """The answer from what render, generate and derender said of it.

    Raises:
        KeyError, IndexError, TypeError, AttributeError, ValueError: one of them is not what vLLM says.
    """
    outcomes = []
    for choice, shown in zip(generated["choices"], completion["choices"], strict=True):
        _as_the_caller_asked(body, choice, shown)
        if body.get("return_token_ids"):
            shown["token_ids"] = choice["token_ids"]
        outcomes.append(engine_outcome(prompt, choice, shown))
    if prompt.get("request_id"):
        completion["id"] = prompt["request_id"]
    if body.get("return_token_ids"):
        completion["prompt_token_ids"] = prompt["token_ids"]
    made = sum(len(choice["token_ids"]) for choice in generated["choices"])
    completion["usage"] = {**(completion.get("usage") or {}), **usage_of(len(prompt["token_ids"]), made)}
    return Answer(completion=completion, outcomes=outcomes)


def engine_outcome(prompt: dict[str, Any], choice: dict[str, Any], shown: dict[str, Any]) -> Outcome:
    """What is recorded of a choice: the message that is shown, and the tokens as the engine gave them.

    Raises:
        KeyError, TypeError, AttributeError, ValueError: one of them is not what vLLM says.
    """
    tokens = Tokens(
        source="engine",
        prompt_ids=prompt["token_ids"],
        response_ids=choice["token_ids"],
        # All or none: who reads a turn with ids and no log-probs refuses it; none is padded or moved here.
        response_logprobs=_logprobs(choice),
    )
    return Outcome(
        message=shown["message"],
        finish_reason=finish_reason(shown.get("finish_reason")),
        tokens=tokens,
        spans=[span_of(span) for span in choice.get("weight_versions") or []],
    )


def usage_of(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """The usage object; `completion_tokens` are those of all choices."""
    total = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}


def finish_reason(said: str | None) -> FinishReason:
    """What is recorded for the finish_reason of a server; `error` for one that nobody knows, and for None."""
    return _FINISH.get(said, "error")


def _as_the_caller_asked(body: dict[str, Any], choice: dict[str, Any], shown: dict[str, Any]) -> None:
    """Make what derender shows what vLLM's chat endpoint shows."""
    _cut_at_stop(body, choice, shown["message"])
    if _ended_by_token(body, choice) and len(choice["token_ids"]) == 1:
        shown["message"]["content"] = ""
    if not body.get("logprobs"):
        shown["logprobs"] = None
    for entry in (shown.get("logprobs") or {}).get("content") or []:
        # The engine names the sampled token among them even where none was asked for.
        entry["top_logprobs"] = (entry.get("top_logprobs") or [])[: body.get("top_logprobs") or 0]
    required = body.get("tool_choice") == "required" and shown["message"].get("tool_calls")
    if required and choice["finish_reason"] == "stop":
        shown["finish_reason"] = "tool_calls"  # as chat completions say it; derender does for "auto" only


def without_tokens(completion: dict[str, Any]) -> Answer:
    """The answer of a server that knows no tokens, from its chat.completion object.

    Raises:
        KeyError, IndexError, TypeError, AttributeError: it is none.
    """
    outcomes = []
    for choice in completion["choices"]:
        message = choice["message"]
        if not isinstance(message, dict):
            raise TypeError("the message is no object")
        outcomes.append(Outcome(message=message, finish_reason=finish_reason(choice.get("finish_reason"))))
    if not outcomes:
        raise IndexError("no choices")
    return Answer(completion=completion, outcomes=outcomes)


def whole_logprobs(ids: list[int], logprobs: list[float | None]) -> list[float | None]:
    """One log-prob a token in nats, or none at all where one is missing or no finite number."""
    good = len(logprobs) == len(ids) and all(
        isinstance(logprob, int | float) and math.isfinite(logprob) and logprob > _NO_LOGPROB for logprob in logprobs
    )
    return [float(logprob) for logprob in logprobs if logprob is not None] if good else []


def _logprobs(choice: dict[str, Any]) -> list[float | None]:
    """The log-prob of each sampled token; empty where one is missing, not finite, or another token's."""
    content = (choice.get("logprobs") or {}).get("content") or []
    if [entry["token_id"] for entry in content] != choice["token_ids"]:
        return []
    return whole_logprobs(choice["token_ids"], [entry["logprob"] for entry in content])


def span_of(span: dict[str, Any]) -> VersionSpan:
    """The span as it is recorded; a version that is no number (a server that never heard of one) is None."""
    text = str(span["version"])
    version = int(text) if text.isascii() and text.isdecimal() else None
    return VersionSpan(version=version, start=span["start"], end=span["end"])


def without_last_token(body: dict[str, Any], generated: dict[str, Any]) -> dict[str, Any]:
    """The response without the token that ended it: the end of turn (no stop_reason) or a stop token that the caller
    named (its id). It is no part of the text, and a server with a tool or reasoning parser would print it."""
    choices = []
    for choice in generated["choices"]:
        # Derender refuses an empty list; `with_tokens` empties the text of an answer that is its end alone.
        ended = _ended_by_token(body, choice) and len(choice["token_ids"]) > 1
        choices.append({**choice, "token_ids": choice["token_ids"][:-1]} if ended else choice)
    return {**generated, "choices": choices}


def _ended_by_token(body: dict[str, Any], choice: dict[str, Any]) -> bool:
    """Whether the last token ended the answer and is not to be shown."""
    stopped = choice.get("finish_reason") == "stop" and not isinstance(choice.get("stop_reason"), str)
    return stopped and not body.get("include_stop_str_in_output")


def _cut_at_stop(body: dict[str, Any], choice: dict[str, Any], message: dict[str, Any]) -> None:
    """End the text before the stop string that the caller named, as chat completions do; the tokens stay whole."""
    stop, text = choice.get("stop_reason"), message.get("content")
    if not isinstance(stop, str) or not isinstance(text, str) or body.get("include_stop_str_in_output"):
        return
    # Generation ends at the first token that completes it, so it is the last place where it begins.
    place = text.rfind(stop)
    if place >= 0:
        message["content"] = text[:place]
