"""The policy in memory: a model with its trainer, and how it is written as a version."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
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
from learner.config import no_fault
from learner.errors import LearnerStopped
from learner.lora import ADAPTER_FILE, adapter_state, add_adapter, merged_state, save_adapter
from learner.manifest import WEIGHT_SUFFIX
from learner.optimizer import MasterAdamW
from learner.others import make_others
from learner.ranks import rank, total, world_size
from learner.recompute import recompute_layers
from learner.samples import TrainingSample
from learner.sharding import shard, whole_state
from learner.step import PolicyTrainer, StepResult
from learner.step_options import StepOptions
from learner.tensors import architecture_difference
from learner.together import together
from learner.trainer_state import read_trainer, write_part, write_state


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

    Where there are several ranks, each holds its part of the weights. The first one's calls are theirs too, and it
    alone writes versions. `base` and what else is read must be at the same place for all.

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

    @together
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
            weights = load_model(directory, dtype, self._load_on).state_dict()
        self._build(options, weights)

    @property
    def has_adapter(self) -> bool:
        """Whether only low-rank adapters learn."""
        return self._lora is not None

    @property
    def options(self) -> StepOptions:
        """Of the recipe at work."""
        return self.trainer.options

    @together
    def train(self, samples: Sequence[TrainingSample]) -> StepResult:
        """See `PolicyTrainer.train`."""
        return self.trainer.train(samples)

    @together
    def change_run(self, run: str, options: StepOptions, version: int) -> None:
        """Go on under another run's recipe, from `version` on, which this policy is. Where the recipe has other
        adapters, or none, what the old ones learned becomes part of the weights, rounded as in that version."""
        if options.lora != self._lora:
            self._build(options, merged_state(self._model, whole_state(self._model, everywhere=True)))
            self.under = 0 if options.lora is None else version
        else:
            masters = self.trainer.optimizer.masters
            self.trainer = self._trainer(options)
            fresh = self.trainer.optimizer.state_dict() | {"masters": masters}
            self.trainer.optimizer.load_state_dict(fresh)
        self.run = run

    @together
    def write(self, directory: Path) -> None:
        """Write the weights, with everything else that a server needs, into `directory`. Adapters are merged into
        them."""
        state = whole_state(self._model)
        if not rank():
            self._model.save_pretrained(directory, state_dict=merged_state(self._model, state))
            copy_support_files(self._base, directory)

    @together
    def write_adapter(self, directory: Path) -> None:
        """Write the adapters alone, as peft and vLLM read them.

        Raises:
            LearnerStopped: the recipe has none.
        """
        if not self.has_adapter:
            raise LearnerStopped(f"the recipe of run {self.run!r} trains all weights and has no adapter to write")
        state = whole_state(self._model)
        if not rank():
            save_adapter(self._model, directory, state=state)

    def save_state(
        self, target: Path, *, version: int, manifest_sha256: str, fault: Callable[[str], None] = no_fault
    ) -> None:
        """Keep the trainer's state after making `version`; see `learner.trainer_state`. Each rank writes its part.

        Raises:
            OSError: it could not be written; the states before are as they were.
        """
        saving = secrets.token_hex(8)
        self._write_parts(target, saving)
        write_state(
            target,
            version=version,
            run=self.run,
            manifest_sha256=manifest_sha256,
            under=self.under,
            trainer=self.trainer.state_dict(),
            ranks=world_size(),
            saving=saving,
            fault=fault,
        )

    @together
    def load_state(self, path: Path) -> None:
        """Have exactly the trainer that was saved at `path`, by however many ranks."""
        self.trainer.load_state_dict(read_trainer(path, rank(), world_size()))

    @together
    def largest_difference(self, directory: Path) -> float:
        """Largest absolute difference between these weights and those of a version on disk; 0.0 where every bit is the
        same.

        Raises:
            LearnerStopped: the version on disk has other tensors.
        """
        other = architecture_difference(directory, self._base)
        if other:
            raise LearnerStopped(other)
        own = merged_state(self._model, whole_state(self._model))
        largest = 0.0
        if rank():
            return largest
        for path in sorted(directory.glob(f"*{WEIGHT_SUFFIX}")):
            for name, stored in load_file(path).items():
                mine = own[name].detach().cpu().to(stored.dtype)
                if not torch.equal(mine, stored):
                    largest = max(largest, float((mine.float() - stored.float()).abs().max()))
        return largest

    @together
    def largest_adapter_difference(self, directory: Path) -> float:
        """As `largest_difference`, of the adapters and those of a version on disk.

        Raises:
            LearnerStopped: the version on disk has other adapters.
        """
        state = whole_state(self._model)
        if rank():
            return 0.0
        own, stored = adapter_state(self._model, state), load_file(directory / ADAPTER_FILE)
        if own.keys() != stored.keys() or any(own[name].shape != value.shape for name, value in stored.items()):
            raise LearnerStopped(f"{directory} holds adapters of other layers or another rank than the recipe's")
        differences = [(own[name].cpu().float() - value.float()).abs().max() for name, value in stored.items()]
        return max(map(float, differences))

    @together
    def _write_parts(self, target: Path, saving: str) -> None:
        """Every rank's part of the state but the first one's."""
        written = not rank()
        if rank():
            with suppress(OSError):
                write_part(target, rank(), world_size(), saving, self.trainer.state_dict())
                written = True
        (missing,) = total([float(not written)])
        if missing and not rank():
            raise OSError(f"{missing:.0f} of {world_size()} ranks could not write their part of {target}")

    @property
    def _load_on(self) -> str:
        """Where a model is loaded: one that will be cut is moved to its device part by part."""
        return self._device if world_size() == 1 else "cpu"

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
        shard(self._model, self._device)
        self.trainer = self._trainer(options)

    def _trainer(self, options: StepOptions) -> PolicyTrainer:
        optimizer = MasterAdamW(
            self._model, lr=options.lr, betas=options.betas, eps=options.eps, weight_decay=options.weight_decay
        )
        others = make_others(self._model, optimizer, options, self._load_base)
        if options.needs_reference and self.has_adapter and self._moved:
            # Under the adapters lie the weights of another run: without adapters they are not version 0.
            others = replace(others, reference=FrozenModel(shard(self._load_base(), self._device)))
        return PolicyTrainer(self._model, options, others, optimizer)

    def _load_base(self) -> Any:
        return load_model(self._base, self._dtype, self._load_on)
