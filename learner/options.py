"""A recipe as the options of a step."""

from __future__ import annotations

from typing import Any

import msgspec

from learner.critic import CriticOptions
from learner.importance import MismatchSpec
from learner.lora import LoraOptions
from learner.step_options import AdvantageOptions, DistillationOptions, StepOptions, TeacherOptions
from schemas.recipes import Recipe

_OF_THE_SERVER = ("top_k", "version", "student_ids")


def step_options(recipe: Recipe, tokens_per_forward: int) -> StepOptions:
    """The options of `recipe`, field by field; `tokens_per_forward` is the machine's, not the recipe's."""
    loss, optimizer = _plain(recipe.loss), _plain(recipe.optimizer)
    loss["mismatch"] = tuple(MismatchSpec(**_plain(measure)) for measure in recipe.loss.mismatch)
    teacher = TeacherOptions()
    if recipe.teacher is not None:
        fields = {name: value for name, value in _plain(recipe.teacher).items() if name not in _OF_THE_SERVER}
        # A sample older than the staleness bound is never trained, so no older version can be credited any more.
        teacher = TeacherOptions(**fields, candidates=recipe.batch.max_staleness + 1)
    critic = None
    if recipe.critic is not None:
        fields = _plain(recipe.critic)
        critic = CriticOptions(**(fields | {"clip": fields["clip"] or None}))
    return StepOptions(
        **loss,
        **optimizer,
        tokens_per_forward=tokens_per_forward,
        advantage=AdvantageOptions(**_plain(recipe.advantage)),
        distillation=DistillationOptions(**_plain(recipe.distillation)),
        teacher=teacher,
        critic=critic,
        lora=None if recipe.lora is None else LoraOptions(**_plain(recipe.lora)),
    )


def _plain(spec: msgspec.Struct) -> dict[str, Any]:
    return msgspec.structs.asdict(spec)
