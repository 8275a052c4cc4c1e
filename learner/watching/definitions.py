"""Every metric of a step: its name, its unit, and what a reader should conclude. No name is invented elsewhere.

The same names stand in `training_steps.metrics`, in the view `step_metrics`, in Prometheus (with the prefix
`hindstream_learner_` and the unit at the end), in TensorBoard and in W&B (both under their heading). A metric that
cannot be said of a step (no token carries it, NaN, infinity) is absent there, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["", "nats", "tokens", "samples", "versions", "seconds"]
"""Empty: a pure number."""


@dataclass(frozen=True)
class Definition:
    """One metric. `heading`: what it stands under where metrics are grouped."""

    name: str
    unit: Unit
    heading: str
    help: str


def _signal(signal: str, what: str, far: str) -> list[Definition]:
    """What every signal has of its own; `far`: what a mean far from 0 for long says."""
    return [
        Definition(f"{signal}_tokens", "tokens", "tokens", f"Response tokens that {what} credits."),
        Definition(f"{signal}_advantage_mean", "", "advantage", f"Mean advantage from {what}. {far}"),
        Definition(
            f"{signal}_advantage_std", "", "advantage",
            f"Standard deviation of the advantages from {what}. Near 0 there is nothing to tell tokens apart by.",
        ),
        *(
            Definition(
                f"{signal}_advantage_{share}", "", "advantage",
                f"{words} of the advantages from {what}: with the others, how they are spread.",
            )
            for share, words in (("p05", "5th percentile"), ("p50", "Median"), ("p95", "95th percentile"))
        ),
        Definition(f"{signal}_loss", "", "loss", f"The loss from {what} alone, weighed as it enters the whole."),
    ]  # fmt: skip


_RATIO = "A token's probability now over its probability when it was sampled"


_ALL: list[Definition] = [
    # The step as a whole.
    Definition("seconds", "seconds", "step", "Wall time of the micro-batch, writing the version included."),
    Definition("tokens_per_second", "", "step", "Trained response tokens a second. Prompts and padding not counted."),
    Definition("samples_trained", "samples", "step", "Samples that carried a gradient."),
    Definition("samples_dropped", "samples", "step", "Samples of the micro-batch that were not trained."),
    Definition(
        "samples_stale", "samples", "staleness",
        "Samples dropped since their tokens are too old. Above 0 for long, the learner is behind the traffic.",
    ),
    Definition(
        "staleness_mean", "versions", "staleness",
        "Mean over samples of the versions between their oldest token and the weights that learn from it.",
    ),
    Definition("staleness_max", "versions", "staleness", "Staleness of the oldest trained sample."),
    Definition("reward_mean", "", "reward", "Mean reward of the trained samples that have one, in [-1, 1]."),
    # The loss.
    Definition("loss", "", "loss", "The whole loss of the first optimizer step. Not comparable between recipes."),
    Definition("combined_loss", "", "loss", "The loss of the summed advantages, where a recipe sums them."),
    Definition(
        "gradient_norm", "", "loss",
        "L2 norm of the gradient before clipping. Absent: it was not finite, and no step was taken.",
    ),
    Definition("learning_rate", "", "loss", "Of the last optimizer step: below the recipe's while it warms up."),
    Definition("tokens", "tokens", "tokens", "Response tokens that carry any gradient."),
    Definition(
        "rejected_tokens", "tokens", "mismatch",
        "Tokens masked since engine and trainer disagree on them beyond the recipe's bounds.",
    ),
    *_signal("rl", "the reward", "Far from 0 for long, nearly all is liked or disliked: look at the judge."),
    *_signal("opd", "the teacher", "Near 0, the hints tell the policy nothing that it does not do already."),
    # How far the policy moved, and from what.
    Definition("ratio_p01", "", "ratio", f"{_RATIO}: 1st percentile."),
    Definition("ratio_p50", "", "ratio", f"{_RATIO}: median. Near 1 unless engine and trainer disagree."),
    Definition("ratio_p99", "", "ratio", f"{_RATIO}: 99th percentile."),
    Definition("ratio_max", "", "ratio", f"{_RATIO}: the largest."),
    Definition(
        "clip_fraction_high", "", "ratio",
        "Share of tokens whose gradient the upper clip took away. Above 0.2 the steps are too large or too many.",
    ),
    Definition("clip_fraction_low", "", "ratio", "Share of tokens whose gradient the lower clip took away."),
    Definition(
        "logprob_gap_mean", "nats", "mismatch",
        "Mean |trainer - engine| log-prob before the step: numerics, and how far the weights moved since. Above 0.1 at "
        "staleness 0, engine and trainer do not run the same model.",
    ),
    Definition("logprob_gap_max", "nats", "mismatch", "Largest |trainer - engine| log-prob before the step."),
    Definition(
        "mismatch_weight_mean", "", "mismatch",
        "Mean weight of a kept token for the gap between engine and trainer. 1: there is no gap.",
    ),
    Definition("kl_k1", "nats", "kl", "KL(behaviour || policy) a token, unbiased estimate, may be negative."),
    Definition("kl_k3", "nats", "kl", "KL(behaviour || policy) a token, low-variance estimate, never negative."),
    Definition("reference_kl", "nats", "kl", "KL(policy || reference model) a token before the step, never negative."),
    Definition("entropy", "nats", "kl", "Mean entropy of the next token. Falling to 0, the policy collapses."),
    # Pairs of answers.
    Definition("pairs", "", "pairs", "Pairs of answers that were compared."),
    Definition(
        "pair_loss", "", "pairs",
        "Mean -log sigmoid(margin) over pairs before the step. 0.69: told apart no better than by the base model.",
    ),
    Definition(
        "pair_margin", "", "pairs",
        "Mean margin: beta times what the policy gained over the base model on the better answer, less on the worse.",
    ),
    Definition(
        "pair_accuracy", "", "pairs",
        "Share of pairs whose better answer gained more over the base model than the worse: before the first step 0.",
    ),
    # The critic.
    Definition("value_loss", "", "critic", "The critic's loss at its first step on the micro-batch."),
    Definition("value_clip_fraction", "", "critic", "Share of values that moved as far as their clip allows."),
    Definition("critic_gradient_norm", "", "critic", "L2 norm of the critic's gradient before clipping."),
    Definition("value_mean", "", "critic", "Mean value that the critic gave before it learned."),
    Definition("return_mean", "", "critic", "Mean return that it learns."),
    Definition(
        "explained_variance", "", "critic",
        "1 - Var(return - value) / Var(return): 1 is perfect, 0 no better than the mean, below 0 misleading.",
    ),
]  # fmt: skip

DEFINITIONS: dict[str, Definition] = {one.name: one for one in _ALL}
"""By name, in the order in which pages show them."""
