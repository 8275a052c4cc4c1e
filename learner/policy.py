"""The policy in memory: a model with its trainer, and how it is written as a version."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from learner.checkpoints import copy_support_files
from learner.companions import FrozenModel
from learner.errors import LearnerStopped
from learner.lora import ADAPTER_FILE, adapter_state, add_adapter, merged_state, save_adapter
from learner.manifest import WEIGHT_SUFFIX
from learner.optimizer import MasterAdamW
from learner.others import make_others
from learner.recompute import recompute_layers
from learner.step import PolicyTrainer
from learner.step_options import StepOptions
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
        recompute: see `learner.recompute`.
        under: whose weights lie under the adapters where they are not version 0's: a version, and its directory, which
            holds them all.
    """

    def __init__(
        self,
        base: Path,
        *,
        run: str,
        options: StepOptions,
        dtype: str,
        device: str,
        recompute: bool = False,
        under: tuple[int, Path] | None = None,
    ) -> None:
        self.trainer: PolicyTrainer
        self._base, self._dtype, self._device, self._recompute = base, dtype, device, recompute
        self.run = run
        self.under = 0
        """The version whose weights lie under the adapters; 0 too where all weights learn."""
        weights = None
        if under is not None:
            self.under, directory = under
            weights = load_model(directory, dtype, device).state_dict()
        self._build(options, weights)

    @property
    def has_adapter(self) -> bool:
        """Whether only low-rank adapters learn."""
        return self._lora is not None

    def change_run(self, run: str, options: StepOptions, version: int) -> None:
        """Go on under another run's recipe, from `version` on, which this policy is. Where the recipe has other
        adapters, or none, what the old ones learned becomes part of the weights, rounded as in that version."""
        if options.lora != self._lora:
            self._build(options, merged_state(self._model))
            self.under = 0 if options.lora is None else version
        else:
            masters = self.trainer.optimizer.masters
            self.trainer = self._trainer(options)
            fresh = self.trainer.optimizer.state_dict() | {"masters": masters}
            self.trainer.optimizer.load_state_dict(fresh)
        self.run = run

    def write(self, directory: Path) -> None:
        """Write the weights, with everything else that a server needs, into `directory`. Adapters are merged into
        them."""
        self._model.save_pretrained(directory, state_dict=merged_state(self._model))
        copy_support_files(self._base, directory)

    def write_adapter(self, directory: Path) -> None:
        """Write the adapters alone, as peft and vLLM read them.

        Raises:
            LearnerStopped: the recipe has none.
        """
        if not self.has_adapter:
            raise LearnerStopped(f"the recipe of run {self.run!r} trains all weights and has no adapter to write")
        save_adapter(self._model, directory)

    def largest_difference(self, directory: Path) -> float:
        """Largest absolute difference between these weights and those of a version on disk; 0.0 where every bit is the
        same.

        Raises:
            LearnerStopped: the version on disk has other tensors.
        """
        other = architecture_difference(directory, self._base)
        if other:
            raise LearnerStopped(other)
        own = merged_state(self._model)
        largest = 0.0
        for path in sorted(directory.glob(f"*{WEIGHT_SUFFIX}")):
            for name, stored in load_file(path).items():
                mine = own[name].detach().cpu().to(stored.dtype)
                if not torch.equal(mine, stored):
                    largest = max(largest, float((mine.float() - stored.float()).abs().max()))
        return largest

    def largest_adapter_difference(self, directory: Path) -> float:
        """As `largest_difference`, of the adapters and those of a version on disk.

        Raises:
            LearnerStopped: the version on disk has other adapters.
        """
        own, stored = adapter_state(self._model), load_file(directory / ADAPTER_FILE)
        if own.keys() != stored.keys() or any(own[name].shape != value.shape for name, value in stored.items()):
            raise LearnerStopped(f"{directory} holds adapters of other layers or another rank than the recipe's")
        differences = [(own[name].cpu().float() - value.float()).abs().max() for name, value in stored.items()]
        return max(map(float, differences))

    def _build(self, options: StepOptions, weights: dict[str, Tensor] | None) -> None:
        """The model with these weights, by default the base's, and with the adapters that `options` ask."""
        self._model = self._load_base()
        self._moved = weights is not None
        if weights is not None:
            self._model.load_state_dict(weights)
        self._lora = options.lora
        if options.lora is not None:
            add_adapter(self._model, options.lora)
        if self._recompute:
            recompute_layers(self._model)
        self.trainer = self._trainer(options)

    def _trainer(self, options: StepOptions) -> PolicyTrainer:
        optimizer = MasterAdamW(
            self._model, lr=options.lr, betas=options.betas, eps=options.eps, weight_decay=options.weight_decay
        )
        others = make_others(self._model, optimizer, options, self._load_base)
        if options.needs_reference and self.has_adapter and self._moved:
            # Under the adapters lie the weights of another run: without adapters they are not version 0.
            others = replace(others, reference=FrozenModel(self._load_base()))
        return PolicyTrainer(self._model, options, others, optimizer)

    def _load_base(self) -> Any:
        return load_model(self._base, self._dtype, self._device)
