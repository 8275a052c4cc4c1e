"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685) through peft: W x + (alpha / rank) B A x, and only A and B
learn. Master weights, moments and gradients are then those of the adapters alone.

A layer keeps its name and place: `model.model` and `model.lm_head` go on as before, so everything else of the learner
works on a model with adapters as on one without.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model_state_dict, inject_adapter_in_model, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import load_file, save_file
from torch import Tensor

ADAPTER_FILE = SAFETENSORS_WEIGHTS_NAME
"""What peft calls the file of the matrices."""

_NAME = "default"
_PREFIX = "base_model.model."
"""What peft puts before the names of a wrapped model's layers in a file."""

_SEED = 0
"""Of the first values of A. B begins at zero, so the adapted model begins as the base model whatever A is."""


@dataclass(frozen=True, kw_only=True)
class LoraOptions:
    """`rank` of A and B; `alpha`: their product weighs alpha / rank, so that the learning rate need not follow the
    rank; `targets`: ends of the names of the layers that get adapters, "all-linear" for every linear layer but the
    head."""

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = ("all-linear",)

    def __post_init__(self) -> None:
        if self.rank < 1 or not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ValueError(f"LoRA needs rank >= 1 and alpha > 0, not rank {self.rank} and alpha {self.alpha}")
        if not self.targets or "lm_head" in self.targets:
            raise ValueError(
                "LoRA needs at least one target, and the head is none: it is computed in tiles, which know no adapter"
            )


def add_adapter(model: Any, options: LoraOptions) -> None:
    """Give `model` adapters in place; from then on only they are trainable.

    Raises:
        ValueError: no layer has a name that ends in one of `options.targets`, or the model has adapters.
    """
    if has_adapter(model):
        raise ValueError("the model has adapters already")
    targets: str | list[str] = "all-linear" if options.targets == ("all-linear",) else list(options.targets)
    config = LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,  # type: ignore[arg-type]  # only ever divided by the rank
        target_modules=targets,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        inject_adapter_in_model(config, model, adapter_name=_NAME)


def has_adapter(model: Any) -> bool:
    """Whether any layer has an adapter."""
    return any(isinstance(module, LoraLayer) for module in model.modules())


def adapter_state(model: Any, state: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The adapters under the names of peft's files; not copies. `state`: what the model holds, by default its own."""
    # With "auto" peft would ask the hub whether the base model's vocabulary was changed.
    state = get_peft_model_state_dict(model, state_dict=state, adapter_name=_NAME, save_embedding_layers=False)
    return {_PREFIX + name: value.detach() for name, value in state.items()}


def save_adapter(model: Any, directory: Path, base: str | None = None, state: dict[str, Tensor] | None = None) -> None:
    """Write `adapter_model.safetensors` and `adapter_config.json` as peft and vLLM read them. `base`: how the base
    model is named in it. `state`: what the model holds, by default its own."""
    directory.mkdir(parents=True, exist_ok=True)
    config = model.peft_config[_NAME]
    config.base_model_name_or_path, config.inference_mode = base, True
    config.target_modules = sorted(config.target_modules)  # a set, which every process would write in another order
    try:
        config.save_pretrained(str(directory))
    finally:
        config.inference_mode = False
    state = {name: value.contiguous().cpu() for name, value in adapter_state(model, state).items()}
    save_file(state, directory / ADAPTER_FILE, metadata={"format": "pt"})


def load_adapter(model: Any, directory: Path) -> None:
    """Read what `save_adapter` wrote into the adapters of `model`.

    Raises:
        ValueError: the file holds other layers than those that have adapters here, or another rank.
    """
    path = directory / ADAPTER_FILE
    stored, own = load_file(path), adapter_state(model)
    wrong = sorted(name for name in stored.keys() | own.keys() if _shape(stored, name) != _shape(own, name))
    if wrong:
        raise ValueError(f"{path} holds adapters of other layers or another rank than the model, such as {wrong[0]}")
    plain = {name.removeprefix(_PREFIX): value for name, value in stored.items()}
    set_peft_model_state_dict(model, plain, adapter_name=_NAME)


@torch.no_grad()
def merged_state(model: Any, state: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The weights of a model that computes the same without adapters, under the names of the base model. `state`: what
    the model holds, by default its own.

    A sum W + (alpha / rank) B A is formed in float32 and rounded once to the dtype of W. Layers without an adapter are
    not copied. Of a model without adapters it is the plain state.
    """
    merged: dict[str, Tensor] = {}
    adapted = {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    state = model.state_dict() if state is None else state
    for name, value in state.items():
        if ".lora_" in name:
            continue
        layer, base, _ = name.rpartition(".base_layer.weight")
        if base:
            a, b = (state[f"{layer}.lora_{each}.{_NAME}.weight"].float() for each in "AB")
            value = (value.float() + b @ a * float(adapted[layer].scaling[_NAME])).to(value.dtype)
        merged[name.replace(".base_layer.", ".")] = value
    return merged


def _shape(state: dict[str, Tensor], name: str) -> torch.Size | None:
    return state[name].shape if name in state else None
