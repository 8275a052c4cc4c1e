"""A recipe as data: which signals a run makes of its turns, and what the learner does with them.

A recipe is hashed (`Recipe.digest`) into every row that it makes; two runs with equal digests ask the same of the
same facts.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from schemas.digests import digest_of
from schemas.events import NextStateKind


class InvalidRecipe(ValueError):
    """A recipe that cannot be run: what is wrong with it and what would be right."""


class TextRule(msgspec.Struct, frozen=True, kw_only=True):
    """A CODE judge's rule for a next state's text: where `pattern` is found (case-insensitive), the vote is `score`."""

    pattern: str
    score: Literal[-1, 0, 1]
    kinds: list[NextStateKind] = msgspec.field(default_factory=lambda: ["user_reply"])


class JudgeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn is scored.

    The code judge looks first: a verdict, an exit code, then `rules` in order, the first that is found. Where it
    cannot tell, and `votes` > 0, the LLM judge is asked `votes` times (each with its own seed) and the majority of
    the valid votes is the reward; fewer than `quorum` valid votes give no reward (`abstained`).
    """

    code: bool = True
    rules: list[TextRule] = []
    votes: int = 3
    quorum: int = 2
    temperature: float = 0.6
    max_tokens: int = 8


class HintSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How a directive signal is found.

    `patterns` are tried first on a user's reply: the first match's group 1 (or the whole match) is the hint, made by
    code. Where none matches and `votes` > 0 the LLM is asked; of the accepted hints the longest is chosen
    (ties: the earliest vote). A hint shorter than `min_characters` is refused.
    """

    patterns: list[str] = []
    votes: int = 3
    temperature: float = 0.6
    max_tokens: int = 96
    min_characters: int = 10


class TeacherSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Who scores the response under the hint: the teacher server's model, with `top_k` alternatives a token."""

    top_k: int = 4


class BatchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`size` samples a micro-batch; a sample whose oldest token is more than `max_staleness` versions behind the
    weights in training is dropped as `stale` (0: same version only)."""

    size: int = 16
    max_staleness: int = 4


class LossSpec(msgspec.Struct, frozen=True, kw_only=True):
    """PPO-clip surrogate. `w_rl` and `w_opd` weigh the two components (0 leaves one out).

    `normaliser`: "component" divides each component by its own tokens, "batch" both by the batch's kept tokens.
    With `tis_cap` None the ratio is to the behaviour's own log-probs, so the clip bounds both staleness and the gap
    between engine and trainer. With a cap the surrogate is decoupled: the ratio is to the trainer's log-probs before
    the step, and min(exp(trainer - engine), cap) weighs each token; the clip then bounds only the step itself.
    """

    w_rl: float = 1.0
    w_opd: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None
    kl_coefficient: float = 0.0
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    entropy_coefficient: float = 0.0
    tis_cap: float | None = None
    aggregation: Literal["token_mean", "sequence_mean", "sequence_sum", "constant"] = "token_mean"
    aggregation_constant: float | None = None
    normaliser: Literal["component", "batch"] = "component"
    train_truncated: bool = True


class OptimizerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """AdamW. `steps` optimizer steps a micro-batch; gradients are clipped to norm `max_grad_norm`."""

    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    steps: int = 1


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that shapes what a run makes of the log."""

    name: str
    description: str
    judge: JudgeSpec | None = None
    hint: HintSpec | None = None
    teacher: TeacherSpec | None = None
    batch: BatchSpec = BatchSpec()
    loss: LossSpec = LossSpec()
    optimizer: OptimizerSpec = OptimizerSpec()

    def signals(self) -> tuple[str, ...]:
        """The evaluations that each turn needs, in the order in which they can start."""
        return (*(("reward",) if self.judge else ()), *(("hint", "teacher") if self.hint else ()))

    def digest(self) -> str:
        """SHA-256 of the recipe's canonical JSON, description left out: words change nothing."""
        plain = msgspec.to_builtins(self)
        del plain["description"]
        return digest_of(plain)

    def check(self) -> None:
        """Refuse what cannot work.

        Raises:
            InvalidRecipe: with the field and the reason.
        """
        problems = []
        if self.judge is None and self.hint is None:
            problems.append("neither judge nor hint: every turn would be dropped")
        if self.judge and not self.judge.code and self.judge.votes < 1:
            problems.append("judge: code is false and votes is 0, so nothing could score a turn")
        if self.judge and self.judge.votes and not 1 <= self.judge.quorum <= self.judge.votes:
            problems.append(f"judge.quorum {self.judge.quorum} must be between 1 and votes {self.judge.votes}")
        if self.hint and not self.hint.patterns and self.hint.votes < 1:
            problems.append("hint: no patterns and no votes, so no hint could be found")
        if (self.hint is None) != (self.teacher is None):
            problems.append("hint and teacher go together: a hint is only used through a teacher's scores")
        if self.teacher and self.teacher.top_k < 4:
            problems.append(f"teacher.top_k {self.teacher.top_k} must be at least 4")
        if self.loss.w_rl and self.judge is None:
            problems.append("loss.w_rl is set but there is no judge; set it to 0")
        if self.loss.w_opd and self.hint is None:
            problems.append("loss.w_opd is set but there is no hint; set it to 0")
        patterns = [rule.pattern for rule in self.judge.rules] if self.judge else []
        for pattern in patterns + (self.hint.patterns if self.hint else []):
            try:
                re.compile(pattern)
            except re.error as err:
                problems.append(f"pattern {pattern!r} is no regular expression: {err}")
        if self.batch.size < 1 or self.batch.max_staleness < 0 or self.optimizer.steps < 1:
            problems.append("batch.size and optimizer.steps must be at least 1, batch.max_staleness at least 0")
        if problems:
            raise InvalidRecipe(f"recipe {self.name!r}: " + "; ".join(problems))


PRESETS: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="binary-rl",
            description="Reward of +1 or -1 for every token of a turn, PPO-clip 0.2/0.28 (OpenClaw-RL, 2603.10165).",
            judge=JudgeSpec(),
            loss=LossSpec(w_opd=0.0),
        ),
        Recipe(
            name="opd",
            description="On-policy distillation: the teacher's log-prob under a hint minus the student's.",
            hint=HintSpec(),
            teacher=TeacherSpec(),
            loss=LossSpec(w_rl=0.0, clip_high=0.2),
        ),
        Recipe(
            name="combine",
            description="Both: w_opd (l_T - l_old) where there is a hint, w_rl r where there is a reward.",
            judge=JudgeSpec(),
            hint=HintSpec(),
            teacher=TeacherSpec(),
        ),
    )
}
"""The recipes that can be named in settings."""


def recipe_named(name: str, overrides: dict[str, Any] | None = None) -> Recipe:
    """A preset with `overrides` applied, a nested dict such as {"optimizer": {"lr": 1e-5}}.

    Raises:
        InvalidRecipe: unknown name or field, or a combination that cannot work.
    """
    if name not in PRESETS:
        raise InvalidRecipe(f"no recipe {name!r}; there are: {', '.join(PRESETS)}")
    return recipe_from_dict(_overlay(msgspec.to_builtins(PRESETS[name]), overrides or {}))


def recipe_from_dict(plain: dict[str, Any]) -> Recipe:
    """A recipe from its JSON form, checked.

    Raises:
        InvalidRecipe: it does not fit, or cannot work.
    """
    try:
        recipe = msgspec.convert(plain, Recipe)
    except msgspec.ValidationError as err:
        raise InvalidRecipe(f"recipe {plain.get('name')!r}: {err}") from err
    recipe.check()
    return recipe


def _overlay(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for name, value in over.items():
        if name not in base:
            raise InvalidRecipe(f"no recipe field {name!r}; there are: {', '.join(sorted(base))}")
        old = base[name]
        out[name] = _overlay(old, value) if isinstance(value, dict) and isinstance(old, dict) else value
    return out
