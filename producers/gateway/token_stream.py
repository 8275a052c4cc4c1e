"""A stream that the gateway writes itself, from vLLM's stream of tokens: ids, log-probs and text of each, and at the
end the weight version of every token. The chunks are those of vLLM's own chat endpoint.

Only for what the tokens' text says as it stands. Where the server parses it (tools, reasoning) see `chat_stream`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from producers.gateway import json_io, sse
from producers.gateway.answers import span_of, usage_of
from producers.gateway.gathering import Gathered

_DIRECT = (
    "echo",
    "use_beam_search",
    "return_prompt_text",
    "logprob_token_ids",
    "return_tokens_as_token_ids",
)
"""What only the server's chat endpoint answers word for word."""

_PARSED = ("tools", "functions")
"""What its parsers have a say in: derender does the same for a whole answer."""


def direct(body: dict[str, Any]) -> bool:
    """Whether only the server's chat endpoint can answer, whole or streamed."""
    return any(body.get(field) for field in _DIRECT) or (bool(body.get("logprobs")) and body.get("top_logprobs") == -1)


def plain(body: dict[str, Any], prompt: dict[str, Any]) -> bool:
    """Whether the text of the tokens is the answer: no parser of the server has a say in it."""
    if direct(body) or any(body.get(field) for field in _PARSED):
        return False
    every_usage = (body.get("stream_options") or {}).get("continuous_usage_stats")
    return not every_usage and prompt.get("reasoning_parser_kwargs") is None


def generate_request(body: dict[str, Any], prompt: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The body for `/inference/v1/generate`, from what render said."""
    sampling = prompt["sampling_params"]
    sampling = {**sampling, "logprobs": sampling.get("logprobs") or 0}
    request = {"model": body["model"], "token_ids": prompt["token_ids"], "sampling_params": sampling, **more}
    for name in ("cache_salt", "priority", "features", "reasoning_ended", "reasoning_parser_kwargs"):
        if prompt.get(name):
            request[name] = prompt[name]
    return request


async def token_chunks(
    body: dict[str, Any], prompt: dict[str, Any], events: AsyncIterator[str], gathered: Gathered
) -> AsyncGenerator[dict[str, Any], None]:
    """The chat.completion.chunk objects for the caller; `gathered` takes in what each says.

    Raises:
        KeyError, IndexError, TypeError, AttributeError, ValueError: an event is not what vLLM says.
    """
    gathered.prompt_ids = prompt["token_ids"]
    gathered.completion_id = prompt.get("request_id") or "chatcmpl"
    head = {
        "id": gathered.completion_id,
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": body["model"],
    }
    begun = False
    async for data in events:
        if data == sse.DONE:
            break
        said = json_io.loads(data)
        if "error" in said:
            gathered.failed = True
            yield said
            continue
        if not begun:
            begun = True
            for index in range(body.get("n") or 1):
                yield head | _role(body, prompt, index)
        for choice in said["choices"]:
            if _silent(choice, gathered):
                continue
            yield head | {"choices": [_take(body, choice, gathered)]}
    if (body.get("stream_options") or {}).get("include_usage") and not gathered.failed:
        yield head | {"choices": [], "usage": usage_of(len(prompt["token_ids"]), gathered.completion_tokens)}


def _role(body: dict[str, Any], prompt: dict[str, Any], index: int) -> dict[str, Any]:
    role = "assistant" if body.get("add_generation_prompt", True) else body["messages"][-1]["role"]
    choice = {"index": index, "delta": {"role": role, "content": ""}, "logprobs": None, "finish_reason": None}
    shown = prompt["token_ids"] if body.get("return_token_ids") else None
    return {"choices": [choice], "prompt_token_ids": shown, "prompt_text": None}


def _silent(choice: dict[str, Any], gathered: Gathered) -> bool:
    """Whether nothing has come of this choice yet: a prompt that is read in pieces."""
    began = choice["index"] in gathered.candidates
    return not began and not choice.get("text") and not choice.get("token_ids")


def _take(body: dict[str, Any], choice: dict[str, Any], gathered: Gathered) -> dict[str, Any]:
    """Gather one piece; gives the choice that the caller sees."""
    candidate = gathered.candidate(choice["index"])
    entries = (choice.get("logprobs") or {}).get("content") or []
    ids = choice.get("token_ids") or []
    delta = {"content": choice["text"]}
    candidate.add_delta(delta)
    candidate.add_tokens(ids, [entry["logprob"] for entry in entries])
    shown: dict[str, Any] = {"index": choice["index"], "delta": delta, "logprobs": None, "finish_reason": None}
    if body.get("logprobs"):
        # The engine names the sampled token among the top ones even where none was asked for.
        top = body.get("top_logprobs") or 0
        shown["logprobs"] = {
            "content": [{**entry, "top_logprobs": entry["top_logprobs"][:top]} for entry in entries],
        }
    if choice.get("finish_reason") is not None:
        candidate.finish_reason = choice["finish_reason"]
        candidate.spans = [span_of(span) for span in choice.get("weight_versions") or []]
        shown["finish_reason"], shown["stop_reason"] = choice["finish_reason"], choice.get("stop_reason")
    shown["token_ids"] = ids if body.get("return_token_ids") else None
    return shown
