"""A model whose weights are cut among the ranks (FSDP2, torch.distributed.fsdp): each layer is put together where it
computes, and taken apart after.

Every trainable tensor is cut along its first dimension, so each rank's master weights, moments and companions are a
part of all of them, and a trainer's state can be cut anew for another number of ranks. Gradients are summed, not
averaged, since each rank's loss is a part of one sum. With one rank a model is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from learner.ranks import rank, world_size

Result = TypeVar("Result")


def shard(module: Any, device: str | None = None) -> Any:
    """Cut the weights of `module` in place, those of each layer of a decoder (`module.model.layers`) for themselves,
    and have this rank's part of them on `device`, by default where they are; gives it back. A module on the CPU is
    moved layer by layer, so no device ever holds all of it. From then on its weights are whole only inside
    `with_weights`."""
    if world_size() == 1:
        return module
    mesh = init_device_mesh(torch.device(device or next(module.parameters()).device).type, (world_size(),))
    layers = module.model.layers if hasattr(module, "model") else []
    for unit in [*layers, module]:
        narrow = any(parameter.dtype in (torch.bfloat16, torch.float16) for parameter in unit.parameters())
        fully_shard(
            unit,
            mesh=mesh,
            # Also the outermost, where torch by default waits for the backward pass: other values may be lent to the
            # parameters before the next pass, and what was put together before would be the old ones.
            reshard_after_forward=True,
            mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32 if narrow else None),
        )
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)  # gloo and NCCL both have it
    module.with_weights = MethodType(_call, module)
    register_fsdp_forward_method(module, "with_weights")
    return module


def with_weights(module: Any, work: Callable[[], Result]) -> Result:
    """What `work` gives, which may use the weights of `module` outside its layers, such as the head's. Tensors that
    carry a gradient must be among what it gives, in a tuple or alone, and every rank must call it."""
    if not is_cut(module):
        return work()
    result: Result = module.with_weights(work)
    return result


def is_cut(module: Any) -> bool:
    """Whether the weights of a module are cut among ranks."""
    return isinstance(module, FSDPModule)


def own_part(tensor: Tensor) -> Tensor:
    """This rank's part of a parameter or gradient; the same memory. A tensor that is not cut is itself."""
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor  # type: ignore[attr-defined]


def whole_state(model: Any, *, everywhere: bool = False) -> dict[str, Tensor]:
    """The weights of `model` by name, put together on the CPU of the first rank, or of every rank; no copies where the
    model is not cut. Elsewhere it is empty. Every rank must call it."""
    state: dict[str, Tensor] = model.state_dict()
    if not is_cut(model):
        return state
    whole: dict[str, Tensor] = {}
    tied: dict[int, Tensor] = {}  # a weight of two names stays one, so that it is written once
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, value in state.items():
        key = id(parameters.get(name, value))
        if key not in tied:
            full = value.full_tensor() if isinstance(value, DTensor) else value
            tied[key] = full.cpu() if everywhere or rank() == 0 else torch.empty(0)
        if everywhere or rank() == 0:
            whole[name] = tied[key]
    return whole


def recut(parts: Sequence[Any], place: int, ranks: int) -> Any:
    """The state of rank `place` of `ranks`, from those of all ranks that saved it (nested dicts and lists): tensors of
    one or more dimensions are joined along the first and cut again, as FSDP2 cuts; all else is the same in each."""
    first = parts[0]
    if isinstance(first, Tensor) and first.dim():
        pieces = torch.cat(list(parts)).chunk(ranks)
        return (pieces[place] if place < len(pieces) else pieces[0][:0]).clone()
    if isinstance(first, dict):
        return {key: recut([part[key] for part in parts], place, ranks) for key in first}
    if isinstance(first, list):
        return [recut(each, place, ranks) for each in zip(*parts, strict=True)]
    return first


def _call(_: nn.Module, work: Callable[[], Result]) -> Result:
    return work()
