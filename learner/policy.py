"""The policy in memory: a model with its trainer, and how it is written as a version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from learner.checkpoints import copy_support_files
from learner.errors import LearnerStopped
from learner.manifest import WEIGHT_SUFFIX
from learner.objective import StepOptions
from learner.step import PolicyTrainer
from learner.tensors import architecture_difference


def load_model(path: Path, dtype: str, device: str) -> Any:
    """A causal language model from a HuggingFace directory, without touching a network.

    Raises:
        LearnerStopped: the directory holds no such model.
    """
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # it would draw in every log
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype), local_files_only=True)
    except (OSError, ValueError) as err:
        raise LearnerStopped(f"{path} holds no model that can be loaded: {err}") from err
    return model.to(device).eval()


class Policy:
    """A trainer with the recipe of the run that it trains for. Changing the recipe keeps the master weights and begins
    with fresh moments: moments under another loss say nothing.

    Args:
        base: directory of version 0: the architecture, the weights to begin with, and the reference of a KL term.
        run: name of the run whose recipe `options` are.
        options: see `StepOptions`.
        dtype: of the forward and backward pass and of the versions on disk.
        device: torch's name of the device.
    """

    def __init__(self, base: Path, *, run: str, options: StepOptions, dtype: str, device: str) -> None:
        self._base, self._dtype, self._device = base, dtype, device
        self._model = load_model(base, dtype, device)
        self.run = run
        self.trainer = self._trainer(options)

    def change_run(self, run: str, options: StepOptions) -> None:
        """Go on under another run's recipe."""
        masters = self.trainer.optimizer.masters
        self.trainer = self._trainer(options)
        fresh = self.trainer.optimizer.state_dict() | {"masters": masters}
        self.trainer.optimizer.load_state_dict(fresh)
        self.run = run

    def write(self, directory: Path) -> None:
        """Write the weights, with everything else that a server needs, into `directory`."""
        self._model.save_pretrained(directory)
        copy_support_files(self._base, directory)

    def largest_difference(self, directory: Path) -> float:
        """Largest absolute difference between these weights and those of a version on disk; 0.0 where every bit is the
        same.

        Raises:
            LearnerStopped: the version on disk has other tensors.
        """
        other = architecture_difference(directory, self._base)
        if other:
            raise LearnerStopped(other)
        own = self._model.state_dict()
        largest = 0.0
        for path in sorted(directory.glob(f"*{WEIGHT_SUFFIX}")):
            for name, stored in load_file(path).items():
                mine = own[name].detach().cpu().to(stored.dtype)
                if not torch.equal(mine, stored):
                    largest = max(largest, float((mine.float() - stored.float()).abs().max()))
        return largest

    def _trainer(self, options: StepOptions) -> PolicyTrainer:
        reference = load_model(self._base, self._dtype, self._device) if options.kl_coefficient else None
        return PolicyTrainer(self._model, options, reference)
