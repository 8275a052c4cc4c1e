"""Versions made by hand, announced as the learner announces them, and a follower of a real vLLM server."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from sqlalchemy import create_engine, text

from learner.base_version import ensure_base_version
from learner.checkpoints import copy_model, version_dir, write_version
from learner.collate import plan_forwards
from learner.commit import add_version
from learner.config import FollowConfig, no_fault
from learner.logprobs import response_log_probs
from learner.lora import LoraOptions, add_adapter, save_adapter
from learner.manifest import Lineage, manifest_digest, read_manifest
from learner.policy import load_model
from learner.policy_server import PolicyServer
from learner.samples import TrainingSample
from learner.serving import follow
from processors.relay import relay_once
from schemas.publish import AckedPublisher
from schemas.topics import WEIGHTS

PROMPT = [1, 4093, 198, 1780, 253, 2430, 2, 198, 1, 520, 9531, 198]


def generate(url: str, ids: list[int] = PROMPT, model: str = "policy", **sampling: Any) -> dict[str, Any]:
    body = {"model": model, "token_ids": ids, "sampling_params": {"temperature": 0.0, "logprobs": 0, **sampling}}
    request = urllib.request.Request(
        f"{url}/inference/v1/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        decoded: dict[str, Any] = json.load(response)
        return decoded


class Serving:
    """Versions of a policy, made by hand from the base model, announced as the learner announces them."""

    def __init__(self, url: str, bootstrap: str, server: str, base: Path, directory: Path, policy: str) -> None:
        self.url, self.bootstrap, self.policy, self.base = url, bootstrap, policy, base
        self.engine = create_engine(url)
        self.weights = directory / "weights"
        self.server = PolicyServer(server, "policy", timeout_s=120)
        with self.engine.begin() as connection:
            ensure_base_version(connection, policy, base, self.weights)

    def add(self, version: int, change: Callable[[dict[str, torch.Tensor]], object], *, send: bool = True) -> Path:
        """Version `version`: the base's tensors after `change`, committed with its announcement."""

        def fill(directory: Path) -> None:
            copy_model(self.base, directory)
            tensors = load_file(directory / "model.safetensors")
            change(tensors)
            save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})

        target = version_dir(self.weights, self.policy, version)
        lineage = Lineage(policy=self.policy, version=version, parent_version=version - 1)
        manifest = write_version(target, lineage, fill, fault=no_fault)
        with self.engine.begin() as connection:
            add_version(connection, self.policy, version, str(target), manifest)
        if send:
            self.send()
        return target

    def send(self) -> None:
        """What the relay does with the outbox."""
        with AckedPublisher(self.bootstrap, client_id="test") as publisher, self.engine.begin() as connection:
            relay_once(connection, publisher, WEIGHTS, 100)

    def loads(self) -> list[tuple[int, str]]:
        """(version, status) of every load, oldest first."""
        query = text("SELECT version, status FROM weight_loads WHERE policy = :policy ORDER BY created_at")
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(query, {"policy": self.policy})]

    def last(self) -> Any:
        """The newest load."""
        query = text("SELECT * FROM weight_loads WHERE policy = :policy ORDER BY created_at DESC LIMIT 1")
        with self.engine.connect() as connection:
            return connection.execute(query, {"policy": self.policy}).one()

    def add_adapter(self, version: int, weight: float, *, send: bool = True) -> Path:
        """Version `version`: an adapter of rank 8 over the base, announced; each of its B is filled with `weight`."""

        def fill(directory: Path) -> dict[str, Any]:
            model = load_model(self.base, "bfloat16", "cpu")
            add_adapter(model, LoraOptions(rank=8))
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if ".lora_B." in name:
                        parameter.fill_(weight)
            save_adapter(model, directory)
            return {"kind": "adapter", "base": {"version": 0, "manifest_sha256": manifest_digest(self.base_manifest)}}

        target = version_dir(self.weights, self.policy, version)
        lineage = Lineage(policy=self.policy, version=version, parent_version=version - 1)
        manifest = write_version(target, lineage, fill, fault=no_fault)
        with self.engine.begin() as connection:
            add_version(connection, self.policy, version, str(target), manifest)
        if send:
            self.send()
        return target

    @property
    def base_manifest(self) -> dict[str, Any]:
        """Version 0's."""
        found = read_manifest(version_dir(self.weights, self.policy, 0))
        assert found is not None
        return found

    @contextmanager
    def followed(self, **more: Any) -> Iterator[None]:
        """`hindstream weights follow` meanwhile."""
        config = FollowConfig(
            bootstrap_servers=self.bootstrap,
            database_url=self.url,
            policy=self.policy,
            weights_dir=self.weights,
            assembled_dir=self.weights.parent / "serving",
            server_url=self.server.url,
            **{"model": "policy", "poll_s": 0.05, "check_s": 0.2, "retry_s": 0.5, **more},
        )
        ready, box = threading.Event(), {}

        async def main() -> None:
            box["stop"], box["loop"] = asyncio.Event(), asyncio.get_running_loop()
            ready.set()
            await follow(config, box["stop"])

        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(asyncio.run, main())
            ready.wait()
            try:
                yield
            finally:
                box["loop"].call_soon_threadsafe(box["stop"].set)
                running.result(60)

    def until(self, done: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait until `done`."""
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, f"not in time: {self.loads()}"
            time.sleep(0.05)


def sharper(tensors: dict[str, torch.Tensor]) -> None:
    """A model that is clearly another one and still answers."""
    for name, tensor in tensors.items():
        if name.endswith("down_proj.weight"):
            tensor.mul_(1.1)


def gaps(serving: Serving, prompt: list[int], answer: dict[str, Any], part: slice = slice(None)) -> list[float]:
    """Mean distance of the served log-probs from the learner's own under version 0 and version 1, nats a token."""
    said = np.array([token["logprob"] for token in answer["logprobs"]["content"]])
    sample = TrainingSample(
        sample_id="s",
        prompt_ids=np.array(prompt, dtype=np.int32),
        response_ids=np.array(answer["token_ids"], dtype=np.int32),
        response_logprobs=np.zeros(len(said), dtype=np.float32),
    )
    (forward,) = plan_forwards([sample], 4096)
    apart = []
    for version in (0, 1):
        model = load_model(version_dir(serving.weights, serving.policy, version), "float32", "cpu")
        with torch.no_grad():
            own = response_log_probs(model, forward)[0].numpy()
        apart.append(float(np.abs(said[part] - own[part]).mean()))
    print(f"gaps to version 0 and 1: {apart}")
    return apart
