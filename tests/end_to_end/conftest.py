"""A pipeline for each test, and the model server as it was found after each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from learner.policy_server import PolicyServer
from schemas.recipes import Recipe
from tests.end_to_end.pipeline import Pipeline


@pytest.fixture
def start_pipeline(tmp_path: Path, vllm_server: str, model_dir: Path) -> Iterator[Callable[[Recipe, str], Pipeline]]:
    """`start_pipeline(recipe, run)` gives a pipeline with nothing started yet but its broker and Postgres."""
    started: list[Pipeline] = []

    def start(recipe: Recipe, run: str) -> Pipeline:
        pipeline = Pipeline(tmp_path / run, vllm_server, recipe, run)
        started.append(pipeline)
        return pipeline

    yield start
    for pipeline in started:
        pipeline.close()
    if started:
        server = PolicyServer(vllm_server, "policy", timeout_s=120)
        server.pause()
        server.reload(model_dir)
        server.forget_prefixes()
        server.set_tag("0")
        server.resume()
