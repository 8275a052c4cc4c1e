"""A policy server's loopback endpoints: pause, reload, reset the prefix cache, tag, resume, and a canary.

vLLM's own (`VLLM_SERVER_DEV_MODE=1`); keep them on loopback or a private network.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp

_RELOAD_S = 300.0
"""Loading takes 0.4 s for 135M parameters; 300 s lets a 70B model come from a cold disk."""

CANARY_IDS = list(range(10, 42))
"""Thirty-two token ids that every vocabulary has. They need not mean anything: other weights give other log-probs."""


class ServerRefused(RuntimeError):
    """The policy server did not do as asked: status and text."""


class PolicyServer:
    """One vLLM server. Use as an async context manager."""

    def __init__(self, url: str, model: str, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def __aenter__(self) -> PolicyServer:
        self._http = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=_RELOAD_S), headers=self._headers, raise_for_status=False
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    async def reload(self, path: Path, version: int) -> None:
        """Load the weights in `path` and tag tokens with `version` from then on. Requests in flight wait meanwhile and
        go on; none is refused.

        Raises:
            ServerRefused: loading failed; the weights may be half loaded and the tag is the old one.
        """
        await self._post("/pause", params={"mode": "keep"})
        try:
            await self._post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(path)}})
            await self._post("/reset_prefix_cache")
            await self._post("/update_weight_version", {"new_version": str(version)})
        finally:
            await self._post("/resume")

    async def tag(self) -> str:
        """The tag of the weights that are served."""
        plain = await self._call("GET", "/weight_info")
        return str(plain["weight_version"])

    async def canary(self) -> float:
        """Log-prob of `CANARY_IDS` under the weights that are served, nats."""
        plain = await self._post(
            "/inference/v1/generate",
            {
                "model": self._model,
                "token_ids": CANARY_IDS,
                "sampling_params": {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 1},
            },
        )
        scored = zip(CANARY_IDS[1:], plain["prompt_logprobs"][1:], strict=True)
        return float(sum(entry[str(token)]["logprob"] for token, entry in scored))

    async def _post(self, path: str, body: Any = None, params: dict[str, str] | None = None) -> Any:
        return await self._call("POST", path, body, params)

    async def _call(self, method: str, path: str, body: Any = None, params: dict[str, str] | None = None) -> Any:
        try:
            async with self._http.request(method, self.url + path, json=body, params=params) as response:
                if response.status != 200:
                    raise ServerRefused(f"{path} answered {response.status}: {(await response.text())[:300]}")
                return await response.json() if response.content_type == "application/json" else None
        except (aiohttp.ClientError, TimeoutError) as err:
            raise ServerRefused(f"{self.url}{path}: {type(err).__name__}: {err}") from err
