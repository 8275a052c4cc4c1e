"""The models beside a policy, made as its recipe asks: reference, teacher and critic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from learner.companions import Companion, Lent, Reference
from learner.critic import Critic, CriticOptions
from learner.measuring import Others
from learner.optimizer import MasterAdamW
from learner.sharding import own_part, shard
from learner.step_options import StepOptions
from learner.teachers import BestTeacher, EmaTeacher


def make_others(model: Any, optimizer: MasterAdamW, options: StepOptions, base: Callable[[], Any]) -> Others:
    """What `options` need and no more.

    A reference holds the base model's values of what `model` trains; a teacher begins as `model` is now; a critic is
    fresh. `base` loads the base model, whole: called for a reference of a policy without adapters, and for a critic of
    its own.
    """
    lent = Lent(model, optimizer)
    reference = Reference(lent, base_values(model, base)) if options.needs_reference else None
    teacher: Companion | None = None
    if options.needs_teacher and options.teacher.weights == "ema":
        teacher = EmaTeacher(lent, options.teacher.ema_rate)
    elif options.needs_teacher:
        teacher = BestTeacher(lent, candidates=options.teacher.candidates, min_samples=options.teacher.best_min_samples)
    critic = None
    if options.needs_critic:
        chosen = options.critic or CriticOptions()
        valued, device = base() if chosen.kind == "model" else model, next(model.parameters()).device.type
        if valued is not model:
            valued.lm_head = torch.nn.Identity()  # it values states and predicts nothing
            shard(valued, device)
        critic = Critic(valued, chosen)
    return Others(reference=reference, teacher=teacher, critic=critic)


def base_values(model: Any, base: Callable[[], Any]) -> list[Tensor]:
    """The values that make `model` the base model, one for each of its trainable parameters: the base model's own, and
    zeros for adapters, whose product then adds nothing. Of a model that is cut among ranks, this rank's part."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    own: dict[str, Tensor] = {}
    if not all(".lora_" in name for name in trained):
        own = dict(shard(base(), next(model.parameters()).device.type).named_parameters())
    return [
        own_part(own[name]).detach() if name in own else torch.zeros_like(own_part(parameter))
        for name, parameter in trained.items()
    ]
