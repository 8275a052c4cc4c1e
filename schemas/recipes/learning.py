"""What the learner does with a run's signals: micro-batches, advantages, losses, the optimizer."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from schemas.recipes.base import AtLeastOne, Count, NotNegative, Positive, Share, Spec


class BatchSpec(Spec, frozen=True, kw_only=True):
    """`size` samples a micro-batch; a sample whose oldest token is more than `max_staleness` versions behind the
    weights in training is dropped as `stale` (0: same version only).

    Where the advantage compares a group's candidates, a micro-batch holds whole groups, `size` samples at least. A
    group is whole when none of its recorded candidates is still being judged, and `group_size` of them are recorded
    (None: as many as there are).

    `tokens`: "sampled" trains turns whose ids and log-probs the engine gave. "text" trains also those that are known as
    text alone; the learner makes their ids by the policy's tokenizer and chat template. No loss may then read the log-
    probs of whoever answered, so weight versions and their bound say nothing.
    """

    later: ClassVar[tuple[str, ...]] = ("group_size", "tokens")

    size: AtLeastOne = 16
    max_staleness: Count = 4
    group_size: Annotated[int, Meta(ge=2)] | None = None
    tokens: Literal["sampled", "text"] = "sampled"


class AdvantageSpec(Spec, frozen=True, kw_only=True):
    """What the reward credits each token with: one of `schemas.recipes.advantages`, and its numbers.

    `std`: divide by the standard deviation of the group or batch (false: Dr. GRPO). `gamma`, `gae_lambda` and
    `whiten` (bring the micro-batch's advantages to mean 0 and variance 1) are GAE's. With `overlong_limit` an answer
    loses up to `overlong_factor` of its reward over its last `overlong_buffer` tokens before that length. `beta` scales
    the implicit reward of "pairs".
    """

    later: ClassVar[tuple[str, ...]] = ("beta",)

    kind: str = "reward"
    std: bool = True
    gamma: Share = 1.0
    gae_lambda: Share = 0.95
    whiten: bool = False
    overlong_limit: AtLeastOne | None = None
    overlong_buffer: AtLeastOne = 64
    overlong_factor: Positive = 1.0
    beta: Positive = 0.1


class DistillationSpec(Spec, frozen=True, kw_only=True):
    """What the teacher's scores credit each token with.

    - "sampled": A = l_T - l_old of the sampled token.
    - "extrapolated": A = scale (l_T - l_ref) - (l_old - l_ref); beyond the teacher where `scale` is above 1.
    - "topk": a clipped surrogate for each of the student's `k` likeliest entries, their gains bounded by `bound`.
    - "divergence": between student and teacher over `k` entries and one bin for the rest. `alpha` 0 is the forward KL
      KL(teacher || student), 1 the reverse, 0.5 Jensen-Shannon.

    `entries`: whose `k` likeliest ones. The teacher's server scores its own likeliest (`teacher.top_k`) and those
    that `teacher.student_ids` asks for: an entry of the student's that is among neither is masked ("topk") or counts
    into the rest ("divergence").
    """

    kind: Literal["sampled", "extrapolated", "topk", "divergence"] = "sampled"
    k: AtLeastOne = 4
    entries: Literal["student", "teacher"] = "student"
    bound: Positive = 1.0
    scale: Positive = 1.25
    alpha: Share = 0.5


class CriticSpec(Spec, frozen=True, kw_only=True):
    """The value function that GAE needs: a "head" on the policy's hidden states, or a "model" of its own made of the
    base model. It takes `steps` steps a micro-batch, each value moves at most `clip` in them (0: unbounded), and
    the first `warmup_batches` micro-batches train it alone.
    """

    kind: Literal["head", "model"] = "head"
    lr: Positive = 1e-4
    clip: NotNegative = 0.2
    steps: AtLeastOne = 1
    warmup_batches: Count = 0


class MismatchSpec(Spec, frozen=True, kw_only=True):
    """One measure against the gap between engine and trainer, with rho = exp(trainer - engine) before the step.

    - "truncate": each token weighs min(rho, `high`).
    - "mask": tokens outside [`low`, `high`] are masked, the others weigh rho.
    - "reject": tokens outside are masked, the others weigh 1. By `estimator`: k1 bounds rho, k2 and k3 bound an
      estimate of the KL from above by `high`, nats.
    - "veto": a sequence with any rho below `low` is masked whole.

    `level`: whose rho, each token's, the product over a sequence, or its geometric mean. What is masked counts in no
    normaliser.
    """

    kind: Literal["truncate", "mask", "reject", "veto"]
    level: Literal["token", "sequence", "geometric"] = "token"
    low: Positive | None = None
    high: Positive | None = None
    estimator: Literal["k1", "k2", "k3"] = "k1"


class LossSpec(Spec, frozen=True, kw_only=True):
    """The policy's loss. `w_rl` and `w_opd` weigh the two components (0 leaves one out).

    `normaliser`: "component" divides each component by its own tokens, "batch" both by the batch's kept tokens.

    `surrogate`: "ppo_clip"; "gspo" (one ratio a sequence); "cispo" (the weight is clipped, never the gradient);
    "mirror" (mirror descent: no clip, a squared log-ratio weighed by `mirror_tau` / 2); "band" (a token whose
    log-ratio leaves [`band_low`, `band_high`] gives no gradient); "nll" (no ratio: the negative log-likelihood of each
    token, times its advantage).

    `decoupled`: the ratio is to the trainer's log-probs before the step, so the clip bounds only the step itself, and
    at a micro-batch's first step every ratio is 1; what lies between those and the behaviour is left to the measures of
    `mismatch`. Else the ratio is to the behaviour's own log-probs, and the clip bounds staleness and the gap between
    engine and trainer as well. None: decoupled where `tis_cap` is set. `tis_cap` truncates each token's weight, as
    {kind = "truncate", high = tis_cap} in `mismatch` does.

    `max_logprob_gap`: mean |engine - trainer| over a micro-batch's kept tokens, nats. Beyond it nothing is trained:
    the learner stops and the micro-batch is held (`on_gap` "hold"), or its samples are dropped ("skip").

    `kl_in`: the KL to the base model as a term of the loss, or taken from the reward.
    """

    later: ClassVar[tuple[str, ...]] = (
        "surrogate",
        "mirror_tau",
        "band_low",
        "band_high",
        "decoupled",
        "mismatch",
        "kl_in",
        "max_logprob_gap",
        "on_gap",
    )

    w_rl: NotNegative = 1.0
    w_opd: NotNegative = 1.0
    clip_low: NotNegative = 0.2
    clip_high: NotNegative = 0.28
    dual_clip: Annotated[float, Meta(gt=1)] | None = None
    kl_coefficient: NotNegative = 0.0
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    entropy_coefficient: float = 0.0
    tis_cap: Positive | None = None
    aggregation: Literal["token_mean", "sequence_mean", "sequence_sum", "constant"] = "token_mean"
    aggregation_constant: Positive | None = None
    normaliser: Literal["component", "batch"] = "component"
    train_truncated: bool = True
    surrogate: Literal["ppo_clip", "gspo", "cispo", "mirror", "band", "nll"] = "ppo_clip"
    mirror_tau: NotNegative = 0.1
    band_low: Annotated[float, Meta(lt=0)] = -0.5
    band_high: Positive = 0.5
    decoupled: bool | None = None
    mismatch: tuple[MismatchSpec, ...] = ()
    kl_in: Literal["loss", "reward"] = "loss"
    max_logprob_gap: Positive | None = None
    on_gap: Literal["hold", "skip"] = "hold"


class OptimizerSpec(Spec, frozen=True, kw_only=True):
    """AdamW. `steps` optimizer steps a micro-batch; gradients are clipped to norm `max_grad_norm`. Over the first
    `warmup_steps` steps the learning rate rises linearly to `lr`."""

    later: ClassVar[tuple[str, ...]] = ("warmup_steps",)

    lr: Positive = 1e-6
    betas: tuple[Share, Share] = (0.9, 0.95)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    max_grad_norm: Positive = 1.0
    steps: AtLeastOne = 1
    warmup_steps: Count = 0


class LoraSpec(Spec, frozen=True, kw_only=True):
    """Low-rank adapters (LoRA, arXiv 2106.09685): only they learn. Their product weighs `alpha` / `rank`. `targets`:
    ends of the names of the layers that get one; "all-linear" is every linear layer but the head.
    """

    rank: AtLeastOne = 16
    alpha: Positive = 32.0
    targets: tuple[str, ...] = ("all-linear",)
