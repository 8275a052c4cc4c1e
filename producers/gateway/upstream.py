"""Asking the policy's server: vLLM token by token, any other OpenAI-compatible server text by text.

vLLM is asked in three steps, so that the recorded ids are the ones that went in and came out of the engine: `render`
(messages to prompt ids and sampling parameters), `generate` (ids to ids, with log-probs and weight versions) and
`derender` (ids to the answer that the caller gets). A server without these has its text recorded, without tokens.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from producers.gateway.answers import Answer, with_tokens, without_last_token, without_tokens
from schemas.depth import nested_deeply

_CONNECT_S = 5.0
"""A server that is there accepts within milliseconds; this is time for a few lost packets."""

_ABSENT = (404, 405)
"""What a server that does not have an endpoint answers; vLLM answers 404 for an unknown model as well, and says so
again when it is asked without tokens."""

_SURROGATE = re.compile("[\ud800-\udfff]")


class UpstreamFailed(RuntimeError):
    """No answer: what to tell the caller.

    `status` and `error` are the caller's response. `refused` tells that the request was at fault and the policy was
    not asked; otherwise the turn is recorded as an error.
    """

    def __init__(self, status: int, error: dict[str, Any], *, refused: bool = False) -> None:
        super().__init__(f"{status}: {error.get('message')}")
        self.status = status
        self.error = error
        self.refused = refused


class Upstream:
    """A client of one server. Use as `async with Upstream(...)`."""

    def __init__(self, url: str, *, model: str, api_key: str | None, timeout_s: float) -> None:
        self._url = url.rstrip("/")
        self._model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Upstream:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        connector = aiohttp.TCPConnector(limit=0)  # how many requests are in flight is the server's to bound
        self._http = aiohttp.ClientSession(headers=self._headers, timeout=timeout, connector=connector)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._http is not None:
            await self._http.close()

    async def models(self) -> dict[str, Any]:
        """The server's list of models.

        Raises:
            UpstreamFailed: it gave none.
        """
        async with self._translated(), self._session().get(f"{self._url}/v1/models") as response:
            return await _read(response)

    async def ask(self, body: dict[str, Any]) -> Answer:
        """The answer to a chat completion request, whole. Cancelling it aborts the server's work.

        Raises:
            UpstreamFailed: no answer, or one that is none.
        """
        body = body if body.get("model") else {**body, "model": self._model}
        async with self._translated():
            prompt = await self._post("/v1/chat/completions/render", body, optional=True)
            generated = None if prompt is None else await self._generate(body, prompt)
            if prompt is None or generated is None:
                plain = await self._post("/v1/chat/completions", body)
                assert plain is not None
                return without_tokens(plain)
            completion = await self._derender(body, prompt, generated)
            return with_tokens(body, prompt, generated, completion)

    async def _generate(self, body: dict[str, Any], prompt: dict[str, Any]) -> dict[str, Any] | None:
        sampling = prompt["sampling_params"]
        sampling = {**sampling, "logprobs": sampling.get("logprobs") or 0}
        request = {"model": body["model"], "token_ids": prompt["token_ids"], "sampling_params": sampling}
        for name in ("cache_salt", "priority", "features"):
            if prompt.get(name):
                request[name] = prompt[name]
        return await self._post("/inference/v1/generate", request, optional=True)

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
            completion = await self._post("/v1/chat/completions/derender", request)
        except UpstreamFailed as err:
            # Whatever it dislikes, the policy has answered: this is no refusal of the request.
            raise _failed(502, f"the model server could not read its own answer: {err}") from err
        assert completion is not None
        return completion

    async def _post(self, path: str, body: dict[str, Any], *, optional: bool = False) -> dict[str, Any] | None:
        """The JSON answer; None where the server does not have an `optional` endpoint."""
        # A lone surrogate is no UTF-8 and no tokenizer takes it; it becomes U+FFFD, as in the record of the turn.
        data = _SURROGATE.sub("\ufffd", json.dumps(body, ensure_ascii=False)).encode("utf-8")
        headers = {"Content-Type": "application/json"}
        async with self._session().post(f"{self._url}{path}", data=data, headers=headers) as response:
            if optional and response.status in _ABSENT:
                return None
            return await _read(response)

    @asynccontextmanager
    async def _translated(self) -> AsyncIterator[None]:
        """Every way in which a server fails, as UpstreamFailed."""
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except TimeoutError as err:
            raise _failed(504, f"the model server did not answer within {self._timeout_s:g} s") from err
        except aiohttp.ClientError as err:
            raise _failed(502, f"the model server does not answer ({type(err).__name__})") from err
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as err:
            raise _failed(502, f"the model server's answer is not what it should be ({type(err).__name__})") from err

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            raise RuntimeError("Upstream is used outside `async with`")
        return self._http


async def _read(response: aiohttp.ClientResponse) -> dict[str, Any]:
    data = await response.read()
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError):
        plain = None
    if nested_deeply(plain):
        plain = None
    if response.status == 200 and isinstance(plain, dict):
        return plain
    said = plain.get("error") if isinstance(plain, dict) else None
    message = said.get("message") if isinstance(said, dict) else None
    if response.status == 200 or response.status in (401, 403) or not 400 <= response.status < 500:
        raise _failed(502, f"the model server answered {response.status}: {message or 'no JSON object'}")
    error = said if isinstance(said, dict) else {"message": f"the model server refused: {response.status}"}
    raise UpstreamFailed(response.status, error, refused=True)


def _failed(status: int, message: str) -> UpstreamFailed:
    return UpstreamFailed(status, {"message": message, "type": "upstream_error", "param": None, "code": status})
