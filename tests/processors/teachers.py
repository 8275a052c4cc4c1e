"""A teacher's server that answers as vLLM's newer runner does: it keeps prefixes, and scores any ids.

The log-prob of a token is made of the token and its place alone, so whole and in pieces it is the same number.
"""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from aiohttp import web
from aiohttp.test_utils import TestServer

BLOCK = 4
"""Tokens of a block of its prefix cache."""


def log_prob(place: int, token: int) -> float:
    return -1.0 - (place * 7 + token * 3) % 11 / 8


class NewerRunner:
    """`versions`: the tags of its answers in turn, the last for ever. `loses`: it gives no score of named ids where it
    read its cache. `scores`: False refuses prompts' log-probs."""

    def __init__(self, *versions: str, max_model_len: int = 1000, loses: bool = False, scores: bool = True) -> None:
        self.versions = list(versions) or ["0"]
        self.max_model_len, self.loses, self.scores = max_model_len, loses, scores
        self.asked: list[tuple[int, int, bool]] = []
        """Of each request: tokens, how many of them it computed, whether it might read the cache."""
        self.places_told: list[int] = []
        self.adapters: tuple[str, ...] = ()
        """Names under which it serves more than its own."""
        self.names: set[str] = set()
        """Under which it was asked for scores."""
        self._kept: set[tuple[int, ...]] = set()
        self.url = ""

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        ids, sampling = body["token_ids"], body["sampling_params"]
        if sampling.get("prompt_logprobs") is not None and not self.scores:
            return web.json_response({"error": {"message": "prompt_logprobs are off"}}, status=400)
        if "logprob_token_ids" in sampling:
            return web.json_response({"error": {"message": "Vocabulary size: 200000"}}, status=400)
        if len(ids) + 1 > self.max_model_len:
            return web.json_response({"error": {"message": "too long"}}, status=400)
        if sampling.get("prompt_logprobs") is None:  # the probe
            return web.json_response({"choices": [{}], "prompt_token_id_logprobs": _encoded(np.zeros((1, 1)))})
        self.names.add(body["model"])
        reads = sampling.get("skip_reading_prefix_cache") is False
        cached = 0
        while reads and tuple(ids[: cached + BLOCK]) in self._kept and cached + BLOCK < len(ids):
            cached += BLOCK
        self._kept |= {tuple(ids[:end]) for end in range(BLOCK, len(ids) + 1, BLOCK)}
        self.asked.append((len(ids), len(ids) - cached, reads))
        places = [
            None,
            *(_place(place, ids[place], sampling["prompt_logprobs"]) for place in range(cached + 1, len(ids))),
        ]
        self.places_told.append(len(places))
        answer: dict[str, Any] = {
            "choices": [{"weight_versions": [{"version": self.versions[0]}]}],
            "prompt_logprobs": places,
        }
        if len(self.versions) > 1:
            self.versions.pop(0)
        rows, start = sampling.get("prompt_logprob_token_ids"), sampling.get("prompt_logprob_start") or 0
        if rows is not None:
            if len(rows) != len(ids) - 1 - start:
                return web.json_response({"error": {"message": "rows"}}, status=400)
            if cached <= start and not (self.loses and reads):
                scores = [[log_prob(start + i + 1, one) for one in row] for i, row in enumerate(rows)]
                answer["prompt_token_id_logprobs"] = _encoded(np.asarray(scores))
        return web.json_response(answer)

    async def _render(self, request: web.Request) -> web.Response:
        text = "\n".join(message["content"] for message in (await request.json())["messages"])
        return web.json_response({"token_ids": [*map(ord, text), 2]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"tokens": list(map(ord, (await request.json())["prompt"]))})

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.versions[0]})

    async def _models(self, _: web.Request) -> web.Response:
        adapters = [{"id": name, "parent": "policy", "max_model_len": None} for name in self.adapters]
        return web.json_response({"data": [{"id": "policy", "max_model_len": self.max_model_len}, *adapters]})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[NewerRunner]:
        app = web.Application()
        app.router.add_post("/inference/v1/generate", self._generate)
        app.router.add_post("/v1/chat/completions/render", self._render)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_get("/weight_info", self._version)
        app.router.add_get("/v1/models", self._models)
        async with TestServer(app) as started:
            self.url = str(started.make_url("")).rstrip("/")
            yield self


def _place(place: int, token: int, top_k: int) -> dict[str, Any]:
    others = [1000 + place * 10 + rank for rank in range(1, top_k + 1)]
    ranked = {str(one): {"logprob": -0.1 * rank, "rank": rank} for rank, one in enumerate(others, 1)}
    return ranked | {str(token): {"logprob": log_prob(place, token), "rank": 50}}


def _encoded(scores: Any) -> str:
    held = io.BytesIO()
    np.save(held, np.asarray(scores, np.float32))
    return base64.b64encode(held.getvalue()).decode()
