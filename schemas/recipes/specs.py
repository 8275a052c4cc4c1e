"""A recipe as data: which signals a run makes of its turns, and what the learner does with them.

A recipe is hashed (`Recipe.digest`) into every row that it makes; two runs with equal digests ask the same of the
same facts.
"""

from __future__ import annotations

from typing import ClassVar

from schemas.digests import digest_of
from schemas.recipes.base import Spec, hashed
from schemas.recipes.learning import (
    AdvantageSpec,
    BatchSpec,
    CriticSpec,
    DistillationSpec,
    LoraSpec,
    LossSpec,
    OptimizerSpec,
)
from schemas.recipes.signals import HintSpec, JudgeSpec, TeacherSpec


class Recipe(Spec, frozen=True, kw_only=True):
    """Everything that shapes what a run makes of the log."""

    later: ClassVar[tuple[str, ...]] = ("advantage", "distillation", "critic", "lora")

    name: str
    description: str
    judge: JudgeSpec | None = None
    hint: HintSpec | None = None
    teacher: TeacherSpec | None = None
    batch: BatchSpec = BatchSpec()
    advantage: AdvantageSpec = AdvantageSpec()
    distillation: DistillationSpec = DistillationSpec()
    critic: CriticSpec | None = None
    loss: LossSpec = LossSpec()
    optimizer: OptimizerSpec = OptimizerSpec()
    lora: LoraSpec | None = None

    def signals(self) -> tuple[str, ...]:
        """The evaluations that each turn needs, in the order in which they can start."""
        return (
            *(("reward",) if self.judge else ()),
            *(("hint",) if self.hint else ()),
            *(("teacher",) if self.teacher else ()),
        )

    def digest(self) -> str:
        """SHA-256 of the recipe's canonical JSON, description left out: words change nothing."""
        plain = hashed(self)
        del plain["description"]
        return digest_of(plain)

    def check(self) -> None:
        """Refuse what cannot work.

        Raises:
            InvalidRecipe: with the field and the reason.
        """
        from schemas.recipes.checks import check  # it needs the class

        check(self)
