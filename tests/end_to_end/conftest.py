"""A pipeline for each test, and the model server as it was found after each."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from schemas.recipes import Recipe
from tests.end_to_end.pipeline import Pipeline


def _post(url: str, body: object | None = None) -> None:
    request = urllib.request.Request(
        url, data=json.dumps(body or {}).encode(), headers={"content-type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=120):
        pass


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
        _post(f"{vllm_server}/pause?mode=keep")
        _post(f"{vllm_server}/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(model_dir)}})
        _post(f"{vllm_server}/reset_prefix_cache")
        _post(f"{vllm_server}/update_weight_version", {"new_version": "0"})
        _post(f"{vllm_server}/resume")
