"""`/v1/completions`: a raw prompt, no conversation. Passed on as it is, and recorded as side turns unless the caller
says `X-Turn-Type: main`: there is no user to answer and no message that a hint could be added to.

vLLM is asked for ids and log-probs as well, which the caller does not see unless he asked. Each prompt of a request is
a conversation of its own, with the prompt as its only message; the answers of one prompt are a group.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from aiohttp import web

from producers.gateway import json_io, sse
from producers.gateway.bodies import body_of
from producers.gateway.chat_api import read_chat
from producers.gateway.chat_stream import one_version
from producers.gateway.desk import Desk, Streamed, TurnFailed
from producers.gateway.gathering import Gathered
from producers.gateway.keys import DESK, UPSTREAM
from producers.gateway.receipts import Receipt
from producers.gateway.refusal import BadRequest
from producers.gateway.replying import send_stream
from producers.gateway.requests import OUR_FIELDS, ChatRequest
from producers.gateway.sessions import Place
from producers.gateway.upstream import COMPLETIONS, Upstream, UpstreamFailed
from schemas.envelope import utc_now
from schemas.events import FinishReason

_NO_IDS = ("echo", "use_beam_search", "best_of", "prompt_embeds")
"""With these the ids of an answer are not those that were sampled, or not in order."""

_MAX_PROMPTS = 2048
"""Prompts of one request, as OpenAI bounds them."""

Plain = dict[str, Any]


async def completions(request: web.Request) -> web.StreamResponse:
    """The handler."""
    body = await body_of(request)
    work = _Work(request, body)
    if not body.get("stream"):
        completion = await work.whole()
        return web.json_response(completion, headers=_headers(work.receipts))
    streamed = Streamed()
    return await send_stream(request, work.chats[0], streamed, work.events(streamed), sse.event(sse.DONE))


def prompts_of(body: Plain) -> list[str]:
    """The text of each prompt; of one that is token ids, the ids as JSON.

    Raises:
        BadRequest: `prompt` is nothing of the kind.
    """
    prompt = body.get("prompt")
    several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
    found = prompt if isinstance(prompt, list) and several else [prompt]
    if len(found) > _MAX_PROMPTS:
        raise BadRequest(f"prompt: {len(found)} prompts; at most {_MAX_PROMPTS} are taken", "prompt", 413)
    for one in found:
        ids = isinstance(one, list) and one and all(isinstance(token, int) for token in one)
        if not isinstance(one, str) and not ids:
            raise BadRequest("prompt: a text, a list of token ids, or a list of these is needed", "prompt")
    return [one if isinstance(one, str) else json.dumps(one) for one in found]


class _Work:
    """One request: a chat request for each prompt, as they are recorded."""

    def __init__(self, request: web.Request, body: Plain) -> None:
        self._desk: Desk = request.app[DESK]
        self._upstream: Upstream = request.app[UPSTREAM]
        told = {name: value for name, value in body.items() if name != "prompt"}
        self.chats: list[ChatRequest] = [
            read_chat(request, {**told, "messages": [{"role": "user", "content": prompt}]}, kind="side")
            for prompt in prompts_of(body)
        ]
        self._body = self._upstream.named({name: value for name, value in body.items() if name not in OUR_FIELDS})
        self._places: list[Place] = [self._desk.place(chat) for chat in self.chats]
        self._gathered = [Gathered() for _ in self.chats]
        self._started_at = utc_now()
        self.receipts: list[Receipt] = []

    async def whole(self) -> Plain:
        """The answer, recorded."""
        try:
            asks_ids, before = await self._prepare()
            completion = await self._upstream.complete(_with_ids(self._body) if asks_ids else self._body)
            async with self._upstream.http.translated():
                self._take(completion)
            await self._versions(before)
        except asyncio.CancelledError:
            self._submit("aborted")
            raise
        except UpstreamFailed as err:
            if not err.refused:
                self._submit("error")
            raise TurnFailed(err, self.receipts[0] if self.receipts else None) from err
        self._submit("error")
        for receipt in self.receipts:
            await receipt.settled()
        return _shown(self._body, completion) if asks_ids else completion

    async def events(self, streamed: Streamed) -> AsyncGenerator[bytes, None]:
        """The events of the stream; recorded however it ends."""
        cut: FinishReason = "aborted"
        refused = False
        try:
            asks_ids, before = await self._prepare()
            async with (
                self._upstream.http.events(COMPLETIONS, _with_ids(self._body) if asks_ids else self._body) as events,
                aclosing(events),
            ):
                async for data in events:
                    if data == sse.DONE:
                        break
                    said = json_io.loads(data)
                    streamed.gathered.failed = streamed.gathered.failed or bool(said.get("error"))
                    self._take(said)
                    yield sse.event(_shown(self._body, said) if asks_ids else said)
            await self._versions(before)
            cut = "error"
        except UpstreamFailed as err:
            cut = "error"
            refused = err.refused and not any(one.candidates for one in self._gathered)
            raise TurnFailed(err, None) from err
        finally:
            candidates = [candidate for one in self._gathered for candidate in one.candidates.values()]
            streamed.gathered.candidates = dict(enumerate(candidates))
            if not refused:
                self._submit(cut)
                streamed.receipt = self.receipts[0]

    async def _prepare(self) -> tuple[bool, str | None]:
        """Whether ids can be asked for, and the version before."""
        asks = not any(self._body.get(field) for field in _NO_IDS) and await self._upstream.speaks_tokens()
        return asks, await self._upstream.version() if asks else None

    async def _versions(self, before: str | None) -> None:
        if before is not None:
            after = await self._upstream.version()
            for gathered in self._gathered:
                one_version(before, after, gathered)

    def _take(self, said: Plain) -> None:
        """Gather a completion or a chunk of one."""
        n = self._body.get("n") or 1
        for choice in said.get("choices") or []:
            gathered = self._gathered[choice.get("index", 0) // n]
            gathered.completion_id = said.get("id")
            gathered.prompt_ids = choice.get("prompt_token_ids") or gathered.prompt_ids
            candidate = gathered.candidate(choice.get("index", 0) % n)
            candidate.add_delta({"content": choice.get("text")})
            if choice.get("token_ids"):
                candidate.add_tokens(choice["token_ids"], (choice.get("logprobs") or {}).get("token_logprobs") or [])
            candidate.finish_reason = choice.get("finish_reason") or candidate.finish_reason

    def _submit(self, cut: FinishReason) -> None:
        """Record what came; `cut` is the end of those that did not end of themselves."""
        for chat, place, gathered in zip(self.chats, self._places, self._gathered, strict=True):
            outcomes = gathered.outcomes(cut)
            self.receipts.append(self._desk.submit(chat, place, outcomes, self._started_at, gathered.completion_id))


def _headers(receipts: list[Receipt]) -> dict[str, str]:
    headers = receipts[0].headers()
    headers["X-Turn-Id"] = ",".join(name for receipt in receipts for name in receipt.turn_ids)
    states = [receipt.recorded for receipt in receipts]
    headers["X-Hindstream-Recorded"] = next((s for s in ("false", "pending", "spooled", "off") if s in states), "true")
    return headers


def _with_ids(body: Plain) -> Plain:
    return {**body, "return_token_ids": True, "logprobs": body["logprobs"] if body.get("logprobs") is not None else 0}


def _shown(body: Plain, said: Plain) -> Plain:
    """What the caller asked for of a completion or a chunk."""
    choices = []
    for choice in said.get("choices") or []:
        shown = dict(choice)
        if not body.get("return_token_ids"):
            shown |= {name: None for name in ("token_ids", "prompt_token_ids") if name in shown}
        if body.get("logprobs") is None:
            shown["logprobs"] = None
        choices.append(shown)
    return {**said, "choices": choices} if "choices" in said else said
