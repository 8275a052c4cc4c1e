"""Asking the policy's server: vLLM token by token, any other OpenAI-compatible server text by text.

vLLM is asked in steps, so that the recorded ids are the ones that went in and came out of the engine: `render`
(messages to prompt ids and sampling parameters), `generate` (ids to ids, with log-probs and weight versions) and, where
the answer is not streamed and is more than text, `derender` (ids to the answer that the caller gets). A server without
these has its text recorded, without tokens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from producers.gateway import chat_stream, token_stream
from producers.gateway.answers import Answer, with_tokens, without_last_token, without_tokens
from producers.gateway.forms import Forms
from producers.gateway.gathering import Gathered
from producers.gateway.http import Absent, Http, UpstreamFailed, failed

__all__ = ["Upstream", "UpstreamFailed"]

_ASK_AGAIN_S = 30.0
"""How long a server that lacks an endpoint is not asked for it again: it may be replaced by one that has it."""

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/inference/v1/generate"


class Upstream:
    """A client of one server. Use as `async with Upstream(...)`."""

    def __init__(self, url: str, *, model: str, api_key: str | None, timeout_s: float) -> None:
        self.http = Http(url, api_key=api_key, timeout_s=timeout_s)
        self._model = model
        self._speaks = False
        self._lacking: dict[str, float] = {}
        self._forms = Forms()

    async def __aenter__(self) -> Upstream:
        await self.http.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.http.__aexit__(*error)

    def named(self, body: dict[str, Any]) -> dict[str, Any]:
        """`body` with the name of the model, where it has none."""
        return body if body.get("model") else {**body, "model": self._model}

    async def models(self) -> dict[str, Any]:
        """The server's list of models.

        Raises:
            UpstreamFailed: it gave none.
        """
        async with self.http.translated():
            return await self.http.get("/v1/models")

    async def prompt_ids(self, body: dict[str, Any]) -> list[int] | None:
        """The ids of a chat request's prompt; None where the server does not say them.

        Raises:
            UpstreamFailed: no answer, or a refusal.
        """
        async with self.http.translated():
            prompt = await self._render(self.named(body))
            return None if prompt is None else list(prompt["token_ids"])

    async def ask(self, body: dict[str, Any]) -> Answer:
        """The answer to a chat completion request, whole. Cancelling it aborts the server's work.

        Raises:
            UpstreamFailed: no answer, or one that is none.
        """
        body = self.named(body)
        async with self.http.translated():
            prompt = await self._render(body)
            if prompt is None:
                return without_tokens(await self.http.post(CHAT, body))
            if token_stream.direct(body):
                return await self._direct(body)
            plain = token_stream.plain(body, prompt)
            more = {"output_mode": "text"} if plain and self._forms.known(body) else {}
            try:
                generated = await self.http.post(GENERATE, token_stream.generate_request(body, prompt, **more))
            except Absent:
                return without_tokens(await self.http.post(CHAT, body))
            if more and all("text" in choice for choice in generated["choices"]):
                return self._forms.filled(body, prompt, generated)
            completion = await self._derender(body, prompt, generated)
            if plain:
                self._forms.learn(completion)
            return with_tokens(body, prompt, generated, completion)

    async def stream(self, body: dict[str, Any], gathered: Gathered) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of the answer to a chat completion request, each as soon as the server gives it; `gathered` has at
        any time what is to be recorded of them. Closing the iterator aborts the server's work.

        Raises:
            UpstreamFailed: no answer, or the stream was cut, or is none.
        """
        body = self.named(body)
        async with self.http.translated():
            prompt = await self._render(body)
        if prompt is not None and token_stream.plain(body, prompt):
            request = token_stream.generate_request(body, prompt, stream=True, output_mode="text")
            try:
                async with (
                    self.http.events(GENERATE, request) as events,
                    aclosing(token_stream.token_chunks(body, prompt, events, gathered)) as chunks,
                ):
                    async for chunk in chunks:
                        yield chunk
            except Absent:
                pass  # then nothing was given yet
            else:
                return
        async with aclosing(self._chat_stream(body, gathered, asks_ids=prompt is not None)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _direct(self, body: dict[str, Any]) -> Answer:
        gathered = Gathered()
        before = await self.version()
        completion = await self.http.post(CHAT, chat_stream.with_ids(body))
        completion = chat_stream.whole(body, completion, gathered)
        if before is not None:
            chat_stream.one_version(before, await self.version(), gathered)
        return Answer(completion=completion, outcomes=gathered.outcomes("error"))

    async def _chat_stream(
        self, body: dict[str, Any], gathered: Gathered, *, asks_ids: bool
    ) -> AsyncGenerator[dict[str, Any], None]:
        before = await self.version() if asks_ids else None
        async with (
            self.http.events(CHAT, chat_stream.with_ids(body) if asks_ids else body) as events,
            aclosing(chat_stream.passed_on(body, events, gathered, asked_ids=asks_ids)) as chunks,
        ):
            async for chunk in chunks:
                yield chunk
        if before is not None:
            chat_stream.one_version(before, await self.version(), gathered)

    async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a completion request, whole.

        Raises:
            UpstreamFailed: there is none.
        """
        async with self.http.translated():
            return await self.http.post(COMPLETIONS, body)

    async def speaks_tokens(self) -> bool:
        """Whether the server takes and gives token ids, as vLLM does."""
        if self._lacks(GENERATE):
            return False
        if not self._speaks:
            try:
                async with self.http.translated():
                    await self.http.post(GENERATE, {})
            except UpstreamFailed as err:
                # Who has the endpoint refuses an empty request; any other fault says nothing, and nothing is kept.
                if isinstance(err, Absent):
                    self._lacking[GENERATE] = time.monotonic()
                self._speaks = err.refused and not isinstance(err, Absent)
        return self._speaks

    async def version(self) -> str | None:
        """The weight version that the server says it has now; None where it does not say."""
        if self._lacks("/weight_info"):
            return None
        try:
            async with self.http.translated():
                said = await self.http.get("/weight_info")
        except UpstreamFailed:
            self._lacking["/weight_info"] = time.monotonic()
            return None
        found = said.get("weight_version")
        return None if found is None else str(found)

    async def _render(self, body: dict[str, Any]) -> dict[str, Any] | None:
        path = f"{CHAT}/render"
        if self._lacks(path) or body.get("use_beam_search"):
            return None  # of beams vLLM renders nothing and says no log-probs
        try:
            return await self.http.post(path, body)
        except Absent as absent:
            # vLLM answers 404 for an unknown model as well; asked without tokens it says so again.
            if absent.endpoint:
                self._lacking[path] = time.monotonic()
            return None

    def _lacks(self, path: str) -> bool:
        return time.monotonic() - self._lacking.get(path, -_ASK_AGAIN_S) < _ASK_AGAIN_S

    async def _derender(
        self, body: dict[str, Any], prompt: dict[str, Any], generated: dict[str, Any]
    ) -> dict[str, Any]:
        request = {
            "model": body["model"],
            "generate_response": without_last_token(body, generated),
            "prompt_tokens": len(prompt["token_ids"]),
            "prompt_token_ids": prompt["token_ids"],
            "chat_request": body,
        }
        try:
            return await self.http.post(f"{CHAT}/derender", request)
        except UpstreamFailed as err:
            # Whatever it dislikes, the policy has answered: this is no refusal of the request.
            raise failed(502, f"the model server could not read its own answer: {err}") from err


async def alive(upstream: Upstream, within_s: float) -> bool:
    """Whether the server answers at all."""
    try:
        async with asyncio.timeout(within_s):
            await upstream.models()
    except (UpstreamFailed, TimeoutError):
        return False
    return True
