"""Which process runs which tests, when there are several: a file in one, and all that a model server answers in one.

A model server takes gigabytes and every core; two at once beside a learner starve each other's brokers and databases.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

MODELS = "tests that a model server answers"
_SERVED = ("vllm_server", "start_pipeline")


class OneModelServer(LoadFileScheduling):
    """Files go to whoever is free; those that use a model server, or run a whole pipeline, go to one process."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self._root = config.rootpath
        self._scopes: dict[str, str] = {}

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        if file not in self._scopes:
            self._scopes[file] = MODELS if uses_models(self._root / file) else file
        return self._scopes[file]


def uses_models(file: Path) -> bool:
    """Whether the tests of this file start a model server or a whole pipeline of processes."""
    return "end_to_end" in file.parts or any(name in file.read_text(encoding="utf-8") for name in _SERVED)
