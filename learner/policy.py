"""The policy in memory: made from a version on disk, trained, and written as the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from learner import checkpoints
from learner.collate import TrainingSample
from learner.config import LearnerConfig
from learner.manifest import Lineage
from learner.objective import StepOptions
from learner.step import PolicyTrainer, StepResult


def load_model(path: Path, dtype: str, device: str) -> Any:
    """A causal language model from a HuggingFace directory, without touching a network."""
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype), local_files_only=True)
    return model.to(device)


class Policy:
    """The trainer of one policy at `version`; version 0 starts with a fresh optimizer, a later one where it ended.

    Raises:
        CheckpointMissing: the version's files or the trainer's state are not on disk.
    """

    def __init__(self, config: LearnerConfig, options: StepOptions, version: int) -> None:
        self._config = config
        self.version = version
        path = self.directory(version)
        if not list(path.glob("*.safetensors")):
            raise checkpoints.CheckpointMissing(f"the weights of version {version} are not in {path}")
        reference = None
        if options.kl_coefficient:
            reference = load_model(self.directory(0), config.dtype, config.device).eval()
        self.trainer = PolicyTrainer(load_model(path, config.dtype, config.device), options, reference)
        if version > 0:
            state = checkpoints.read_state(self._state_file(version))
            self.trainer.optimizer.load_state_dict(state["optimizer"])

    def directory(self, version: int) -> Path:
        """Where a version of this policy lies."""
        return checkpoints.version_dir(self._config.weights_dir, self._config.policy, version)

    def train(self, samples: Sequence[TrainingSample]) -> StepResult:
        """One micro-batch; the weights in memory are then ahead of `version` until `write` and a commit."""
        return self.trainer.train(samples)

    def write(self, lineage: Lineage, fault: Callable[[str], None]) -> dict[str, Any]:
        """Write weights and trainer state of `lineage.version`, durable; returns the manifest."""

        def fill(directory: Path) -> None:
            self.trainer.model.save_pretrained(directory)
            checkpoints.copy_support_files(self.directory(0), directory)

        checkpoints.write_state(self._state_file(lineage.version), {"optimizer": self.trainer.optimizer.state_dict()})
        manifest = checkpoints.write_version(self.directory(lineage.version), lineage, fill, fault=fault)
        fault("after_rename")
        return manifest

    def _state_file(self, version: int) -> Path:
        return checkpoints.state_file(self._config.weights_dir, self._config.policy, version)
