"""A stream that the server itself writes in chunks, passed on as it is: of a server that knows no tokens, or of vLLM
where its parsers have a say (tools, reasoning). vLLM is asked for token ids and log-probs in each chunk, which the
caller does not see unless he asked. It names no weight version there, so the version is asked for before and after:
the same one made every token; if it changed in between, which token is whose is not known and is recorded as None.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from producers.gateway import json_io, sse
from producers.gateway.answers import span_of
from producers.gateway.gathering import Candidate, Gathered


def with_ids(body: dict[str, Any]) -> dict[str, Any]:
    """`body` asking for token ids and log-probs as well. A body that vLLM refuses stays one that it refuses."""
    asked = {**body, "return_token_ids": True}
    if not body.get("logprobs") and not body.get("top_logprobs"):
        asked["logprobs"] = True
    if body.get("include_reasoning") is False:
        # vLLM hides all ids with the reasoning; the gateway hides the text alone.
        asked["include_reasoning"] = True
    return asked


async def passed_on(
    body: dict[str, Any], events: AsyncIterator[str], gathered: Gathered, *, asked_ids: bool
) -> AsyncGenerator[dict[str, Any], None]:
    """The chunks for the caller; `gathered` takes in what each says. `asked_ids`: `with_ids` was sent.

    Raises:
        KeyError, IndexError, TypeError, AttributeError, ValueError: an event is no chat.completion.chunk.
    """
    async for data in events:
        if data == sse.DONE:
            break
        said = json_io.loads(data)
        if said.get("error"):
            gathered.failed = True
            yield said
            continue
        gathered.completion_id = gathered.completion_id or said.get("id")
        gathered.prompt_ids = gathered.prompt_ids or said.get("prompt_token_ids") or []
        for choice in said.get("choices") or []:
            _gather(choice, gathered.candidate(choice.get("index", 0)))
        if not asked_ids:
            yield said
        elif (shown := _shown(body, said)) is not None:
            yield shown


def whole(body: dict[str, Any], completion: dict[str, Any], gathered: Gathered) -> dict[str, Any]:
    """The same for a whole answer that `with_ids` asked for: the chat.completion for the caller.

    Raises:
        KeyError, IndexError, TypeError, AttributeError, ValueError: it is none.
    """
    gathered.completion_id = completion.get("id")
    gathered.prompt_ids = completion.get("prompt_token_ids") or []
    for choice in completion["choices"]:
        _gather({**choice, "delta": choice["message"]}, gathered.candidate(choice["index"]))
    shown = dict(completion)
    if not body.get("return_token_ids"):
        shown["prompt_token_ids"] = None
    shown["choices"] = [_whole_choice(body, choice) for choice in completion["choices"]]
    return shown


def _whole_choice(body: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    choice = dict(said)
    if not body.get("return_token_ids"):
        choice["token_ids"] = None
    if not body.get("logprobs"):
        choice["logprobs"] = None
    if body.get("include_reasoning") is False:
        choice["logprobs"], choice["message"] = None, {**choice["message"], "reasoning": None}
    return choice


def one_version(before: str | None, after: str | None, gathered: Gathered) -> None:
    """Name the version of every token, where the server had only one while it answered."""
    same = before if before == after else None
    for candidate in gathered.candidates.values():
        if candidate.ids and same is not None:
            candidate.spans = [span_of({"version": same, "start": 0, "end": len(candidate.ids)})]


def _gather(choice: dict[str, Any], candidate: Candidate) -> None:
    candidate.add_delta(choice.get("delta") or {})
    entries = (choice.get("logprobs") or {}).get("content") or []
    ids = choice.get("token_ids") or []
    if ids:
        candidate.add_tokens(ids, [entry.get("logprob") for entry in entries])
    candidate.finish_reason = choice.get("finish_reason") or candidate.finish_reason


def _shown(body: dict[str, Any], said: dict[str, Any]) -> dict[str, Any] | None:
    """The chunk without what the caller did not ask for; None where nothing is left of it."""
    out = dict(said)
    if out.get("prompt_token_ids") is not None and not body.get("return_token_ids"):
        out["prompt_token_ids"] = None
    out["choices"] = [choice for one in said.get("choices") or [] if (choice := _choice(body, one)) is not None]
    return None if said.get("choices") and not out["choices"] else out


def _choice(body: dict[str, Any], said: dict[str, Any]) -> dict[str, Any] | None:
    choice = dict(said)
    hidden = body.get("include_reasoning") is False
    if not body.get("return_token_ids") and "token_ids" in choice:
        choice["token_ids"] = None
    if not body.get("logprobs") or hidden:
        choice["logprobs"] = None
    if hidden:
        delta = choice.get("delta") or {}
        choice["delta"] = {
            name: value for name, value in delta.items() if name not in ("reasoning", "reasoning_content")
        }
    silent = not choice.get("delta") and choice.get("finish_reason") is None
    return None if silent and not choice.get("token_ids") and not choice.get("logprobs") else choice
