"""What a step does: the fields of a recipe as `schemas.recipes.learning` documents them, for the learner's math, which
knows nothing of recipes, and what the machine allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from learner.aggregation import Aggregation
from learner.importance import MismatchSpec
from learner.losses.kl import KlEstimator

if TYPE_CHECKING:
    from learner.critic import CriticOptions
    from learner.lora import LoraOptions

Surrogate = Literal["ppo_clip", "gspo", "cispo", "mirror", "band", "nll"]


@dataclass(frozen=True, kw_only=True)
class AdvantageOptions:
    """See `schemas.recipes.AdvantageSpec`."""

    kind: str = "reward"
    std: bool = True
    gamma: float = 1.0
    gae_lambda: float = 0.95
    whiten: bool = False
    overlong_limit: int | None = None
    overlong_buffer: int = 64
    overlong_factor: float = 1.0
    beta: float = 0.1


@dataclass(frozen=True, kw_only=True)
class DistillationOptions:
    """See `schemas.recipes.DistillationSpec`."""

    kind: Literal["sampled", "extrapolated", "topk", "divergence"] = "sampled"
    k: int = 4
    entries: Literal["student", "teacher"] = "student"
    bound: float = 1.0
    scale: float = 1.25
    alpha: float = 0.5

    @property
    def of_entries(self) -> bool:
        """Whether it looks at several vocabulary entries a token, and not only at the sampled one."""
        return self.kind in ("topk", "divergence")


@dataclass(frozen=True, kw_only=True)
class TeacherOptions:
    """See `schemas.recipes.TeacherSpec`. `candidates`: past versions among which the best is looked for."""

    weights: Literal["server", "ema", "best"] = "server"
    ema_rate: float = 0.05
    best_min_samples: int = 32
    candidates: int = 1


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """See `schemas.recipes.LossSpec` and `OptimizerSpec`. `tokens_per_forward` is the machine's, not the recipe's."""

    w_rl: float = 1.0
    w_opd: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None
    kl_coefficient: float = 0.0
    kl_estimator: KlEstimator = "k3"
    kl_in: Literal["loss", "reward"] = "loss"
    entropy_coefficient: float = 0.0
    tis_cap: float | None = None
    aggregation: Aggregation = "token_mean"
    aggregation_constant: float | None = None
    normaliser: Literal["component", "batch"] = "component"
    train_truncated: bool = True
    surrogate: Surrogate = "ppo_clip"
    mirror_tau: float = 0.1
    band_low: float = -0.5
    band_high: float = 0.5
    decoupled: bool | None = None
    mismatch: tuple[MismatchSpec, ...] = ()
    max_logprob_gap: float | None = None
    on_gap: Literal["hold", "skip"] = "hold"
    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    steps: int = 1
    warmup_steps: int = 0
    tokens_per_forward: int = 2048
    advantage: AdvantageOptions = AdvantageOptions()
    distillation: DistillationOptions = DistillationOptions()
    teacher: TeacherOptions = TeacherOptions()
    critic: CriticOptions | None = None
    lora: LoraOptions | None = None

    @property
    def measures(self) -> tuple[MismatchSpec, ...]:
        """Every measure against the gap between engine and trainer."""
        if self.tis_cap is None:
            return self.mismatch
        return (MismatchSpec(kind="truncate", high=self.tis_cap), *self.mismatch)

    @property
    def is_decoupled(self) -> bool:
        """Whether the ratio is to the trainer's log-probs before the step."""
        return self.tis_cap is not None if self.decoupled is None else self.decoupled

    @property
    def needs_reference(self) -> bool:
        """Whether a reference model's log-probs are read."""
        extrapolates = self.w_opd != 0 and self.distillation.kind == "extrapolated" and self.distillation.scale != 1
        return self.kl_coefficient != 0 or extrapolates or self.compares_pairs

    @property
    def compares_pairs(self) -> bool:
        """Whether the advantage compares two answers to the same messages."""
        return self.w_rl != 0 and self.advantage.kind == "pairs"

    @property
    def needs_critic(self) -> bool:
        """Whether the advantage reads values."""
        return self.w_rl != 0 and self.advantage.kind == "gae"

    @property
    def needs_teacher(self) -> bool:
        """Whether a teacher inside the learner scores."""
        return self.w_opd != 0 and self.teacher.weights != "server"

    @property
    def needs_entries(self) -> bool:
        """Whether several vocabulary entries a token are read."""
        return self.w_opd != 0 and self.distillation.of_entries

    @property
    def needs_own_scores(self) -> bool:
        """Whether the trainer's log-probs before the step must be known before the loss: what is masked by them counts
        in no normaliser, the student's likeliest entries are chosen by them, and pairs are weighed by them."""
        masks = any(measure.kind != "truncate" for measure in self.measures)
        of_student = self.distillation.entries == "student" or self.distillation.kind == "topk"
        return masks or (self.needs_entries and of_student) or self.compares_pairs

    @property
    def needs_measuring(self) -> bool:
        """Whether any model must be asked before the loss."""
        return (
            self.needs_own_scores
            or self.needs_reference
            or self.needs_teacher
            or self.needs_critic
            or self.needs_entries
        )
