"""A policy server's endpoints for whoever loads weights: pause, reload, reset the prefix cache, tag, resume, score.

vLLM's own (`VLLM_SERVER_DEV_MODE=1`); keep them on loopback or a private network.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

CANARY_IDS = list(range(10, 74))
"""64 token ids that every vocabulary has. They need not mean anything: other weights give other log-probs."""

_CANARY_TOKENS = 16
"""A change that moves one log-prob of a prompt moves one of these soon."""
_SHOWN = 300
"""Characters of a refusal that are kept: its first line, without a page of traceback."""


class ServerAway(RuntimeError):
    """The policy server does not answer; it may come back by itself."""


class ServerRefused(RuntimeError):
    """The policy server answered, and did not do as asked: status and text."""


class PolicyServer:
    """One vLLM server. Blocking calls, from any one thread.

    Every method raises `ServerAway` where nothing answers in `timeout_s`, and `ServerRefused` where the answer is an
    error.
    """

    def __init__(self, url: str, model: str, *, timeout_s: float, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._model, self._timeout_s = model, timeout_s
        self._headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {api_key}"} if api_key else {}
        )
        # These calls never leave the private network, whatever proxy the environment names.
        self._http = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def tag(self) -> str:
        """The tag that the tokens of this moment get; "default" where nobody has set one."""
        return str(self._call("GET", "/weight_info")["weight_version"])

    def is_paused(self) -> bool:
        """Whether requests are being held."""
        return bool(self._call("GET", "/is_paused")["is_paused"])

    def pause(self) -> None:
        """Hold every request, those in flight with what they have; none is refused."""
        self._call("POST", "/pause?mode=keep&clear_cache=false")

    def resume(self) -> None:
        """Go on with every request."""
        self._call("POST", "/resume")

    def reload(self, path: Path) -> None:
        """Load the weights in `path`. After a refusal they may be half loaded."""
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
        self._call("POST", "/collective_rpc", body)

    def takes_adapters(self) -> bool:
        """Whether the model's name is for an adapter: it is not one under which the server has its base model."""
        return all(entry["id"] != self._model or entry.get("parent") is not None for entry in self._models())

    def answers(self) -> bool:
        """Whether the server knows the model's name now; one that is for an adapter, once an adapter was loaded."""
        return any(entry["id"] == self._model for entry in self._models())

    def load_adapter(self, path: Path) -> None:
        """Put the adapter in `path` in the place of the one before, under the model's name. After a refusal the one
        before is served."""
        body = {"lora_name": self._model, "lora_path": str(path), "load_inplace": True}
        try:
            self._call("POST", "/v1/load_lora_adapter", body)
        except ServerRefused as err:
            raise ServerRefused(
                f"{err} (vLLM needs --enable-lora, --max-lora-rank and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1)"
            ) from err

    def forget_prefixes(self) -> None:
        """Drop every cached prefix, those of requests in flight too: what the old weights computed must not answer for
        the new ones. A request in flight goes on from its tokens, whose cache is computed again."""
        answer = self._call("POST", "/reset_prefix_cache?reset_running_requests=true")
        if not answer.get("success"):
            raise ServerRefused("/reset_prefix_cache did not succeed: the old weights' cache would stay in use")

    def set_tag(self, tag: str) -> None:
        """Stamp tokens with `tag` from now on."""
        self._call("POST", "/update_weight_version", {"new_version": tag})

    def log_probs(self, ids: list[int]) -> list[float]:
        """Log-prob of each of `ids` after the first under the weights that are served, nats."""
        sampling = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 1}
        body = {"model": self._model, "token_ids": ids, "sampling_params": sampling}
        scored = self._call("POST", "/inference/v1/generate", body)["prompt_logprobs"]
        return [float(entry[str(token)]["logprob"]) for token, entry in zip(ids[1:], scored[1:], strict=True)]

    def canary(self) -> list[float]:
        """Log-probs that other weights would give otherwise, nats: of `CANARY_IDS`; where the model's name is for an
        adapter, of the likeliest tokens after them, since vLLM 0.32 on a CPU stops for good where a server that takes
        adapters scores a prompt beside other requests."""
        if not self.takes_adapters():
            return self.log_probs(CANARY_IDS)
        sampling = {"max_tokens": _CANARY_TOKENS, "temperature": 0.0, "logprobs": 0, "ignore_eos": True}
        body = {"model": self._model, "token_ids": CANARY_IDS, "sampling_params": sampling}
        choice = self._call("POST", "/inference/v1/generate", body)["choices"][0]
        return [float(token["logprob"]) for token in choice["logprobs"]["content"]]

    def _models(self) -> list[dict[str, Any]]:
        models: list[dict[str, Any]] = self._call("GET", "/v1/models")["data"]
        return models

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if method == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=self._headers, method=method)
        try:
            with self._http.open(request, timeout=self._timeout_s) as response:
                answer = response.read()
        except urllib.error.HTTPError as err:
            text = err.read().decode("utf-8", "replace")
            raise ServerRefused(f"{path} answered {err.code}: {' '.join(text.split())[:_SHOWN]}") from err
        except (OSError, http.client.HTTPException) as err:
            raise ServerAway(f"{self.url}{path}: {getattr(err, 'reason', err) or type(err).__name__}") from err
        try:
            decoded = json.loads(answer)
        except ValueError:  # nothing, or a sentence: what matters is that it is no error
            return {}
        return decoded if isinstance(decoded, dict) else {}
