"""What a recipe asks of its teacher."""

from __future__ import annotations

from dataclasses import dataclass

from processors.evaluators.hinted import Place
from schemas.recipes import Recipe, needs_of


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """`top_k` likeliest tokens a place; `place`: where the hint goes; `version`: the only weight version whose scores
    count (None: any); `student_k`: how many of the policy's own likeliest tokens are scored too (0: none)."""

    top_k: int
    place: Place = "last_user"
    version: int | None = None
    student_k: int = 0

    @classmethod
    def of(cls, recipe: Recipe) -> Wanted:
        """What `recipe`, which has a teacher, asks of it."""
        teacher = recipe.teacher
        assert teacher is not None
        return cls(
            top_k=teacher.top_k,
            place=recipe.hint.place if recipe.hint else "last_user",
            version=teacher.version,
            student_k=recipe.distillation.k if needs_of(recipe).student_scores else 0,
        )

    @property
    def more(self) -> list[str]:
        """For digests of questions: what is not as in a recipe that says nothing of it."""
        pinned = [] if self.version is None else [f"version {self.version}"]
        return pinned + ([f"student {self.student_k}"] if self.student_k else [])
