"""What a recipe must fulfil beyond the types of its fields: combinations that can work."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from schemas.recipes.advantages import ADVANTAGES
from schemas.recipes.learning import MismatchSpec
from schemas.recipes.specs import Recipe


class InvalidRecipe(ValueError):
    """A recipe that cannot be run: what is wrong with it and what would be right."""


def check(recipe: Recipe) -> None:
    """Refuse what cannot work.

    Raises:
        InvalidRecipe: every problem, each with the field and what would be right.
    """
    problems = [
        *_not_finite(msgspec.to_builtins(recipe), ""),
        *_signals(recipe),
        *_patterns(recipe),
        *_advantage(recipe),
        *_distillation(recipe),
        *_loss(recipe),
        *_lora(recipe),
        *_likelihood(recipe),
        *_text(recipe),
    ]
    if problems:
        raise InvalidRecipe(f"recipe {recipe.name!r}: " + "; ".join(problems))


def _not_finite(plain: Any, path: str) -> Iterator[str]:
    if isinstance(plain, dict):
        for name, value in plain.items():
            yield from _not_finite(value, f"{path}.{name}" if path else name)
    elif isinstance(plain, float) and not math.isfinite(plain):
        yield f"{path} is {plain}; it must be a finite number"


def _signals(recipe: Recipe) -> Iterator[str]:
    judge, hint = recipe.judge, recipe.hint
    if judge is None and hint is None and recipe.teacher is None:
        yield "neither judge nor hint: every turn would be dropped"
    if judge and not judge.code and judge.votes < 1:
        yield "judge: code is false and votes is 0, so nothing could score a turn"
    if judge and judge.votes and not 1 <= judge.quorum <= judge.votes:
        yield f"judge.quorum {judge.quorum} must be between 1 and votes {judge.votes}"
    if judge and judge.functions and not judge.code:
        yield "judge.functions are asked by the code judge: set judge.code to true, or leave them out"
    if hint and hint.context is not None and not hint.context.strip():
        yield "hint.context is empty: give the text that the teacher sees, or leave the field out"
    if hint and hint.context is None and not hint.patterns and hint.votes < 1:
        yield "hint: no context, no patterns and no votes, so no hint could be found"
    if hint is not None and recipe.teacher is None:
        yield "hint and teacher go together: a hint is only used through a teacher's scores"
    if hint is None and recipe.teacher is not None and recipe.teacher.weights != "server":
        yield (
            f"teacher.weights {recipe.teacher.weights!r} without a hint: the policy's own weights have nothing to "
            "teach it about a prompt that it reads itself"
        )
    yield from _teacher(recipe)
    if not recipe.loss.w_rl and not recipe.loss.w_opd:
        yield "loss.w_rl and loss.w_opd are both 0: nothing would be trained"
    if recipe.loss.w_rl and judge is None:
        yield "loss.w_rl is set but there is no judge; set it to 0"
    if recipe.loss.w_opd and recipe.teacher is None:
        yield "loss.w_opd is set but there is no hint; set it to 0"


def _teacher(recipe: Recipe) -> Iterator[str]:
    teacher, spec = recipe.teacher, recipe.distillation
    if teacher is None:
        return
    if teacher.weights != "server" and teacher.version is not None:
        yield (
            f"teacher.version pins what the teacher's server serves, and teacher.weights {teacher.weights!r} scores in "
            "the learner: leave it out, or set teacher.weights to 'server'"
        )
    reads = recipe.loss.w_opd and teacher.weights == "server" and spec.kind in ("topk", "divergence")
    if teacher.student_ids and not reads:
        yield (
            "teacher.student_ids: nothing would read the scores; they are for distillation.kind 'topk' or 'divergence' "
            "with teacher.weights 'server'. Set it to false"
        )


def _patterns(recipe: Recipe) -> Iterator[str]:
    rules = [rule.pattern for rule in recipe.judge.rules] if recipe.judge else []
    for pattern in rules + (recipe.hint.patterns if recipe.hint else []):
        try:
            re.compile(pattern)
        except re.error as err:
            yield f"pattern {pattern!r} is no regular expression: {err}"


def _advantage(recipe: Recipe) -> Iterator[str]:
    kind = recipe.advantage.kind
    if kind not in ADVANTAGES:
        yield f"advantage.kind {kind!r} is unknown; there are: {', '.join(ADVANTAGES)}"
        return
    advantage = ADVANTAGES[kind]
    if advantage.critic and recipe.critic is None:
        yield f"advantage.kind {kind!r} needs values: add a [critic]"
    if recipe.critic is not None and not advantage.critic:
        yield f"critic: advantage.kind {kind!r} reads no values; leave it out or set advantage.kind to 'gae'"
    if recipe.batch.group_size is not None and not advantage.whole_groups:
        yield f"batch.group_size: advantage.kind {kind!r} compares no groups; leave it out"


def _distillation(recipe: Recipe) -> Iterator[str]:
    spec, teacher = recipe.distillation, recipe.teacher
    if not recipe.loss.w_opd or teacher is None:
        return
    if spec.kind == "topk" and spec.entries != "student":
        yield "distillation.entries: kind 'topk' is a surrogate over the student's own entries; set it to 'student'"
    if spec.kind in ("topk", "divergence"):
        if teacher.weights == "server" and spec.k > teacher.top_k:
            yield (
                f"distillation.k {spec.k} is more than the teacher's server scores: set teacher.top_k to {spec.k} at "
                f"least, or distillation.k to {teacher.top_k} at most"
            )
        if recipe.loss.normaliser == "batch":
            yield (
                f"loss.normaliser 'batch' sums advantages of sampled tokens, and distillation.kind {spec.kind!r} has "
                "a loss of its own: use 'component'"
            )


def _loss(recipe: Recipe) -> Iterator[str]:
    loss = recipe.loss
    if loss.aggregation == "constant" and loss.aggregation_constant is None:
        yield "loss.aggregation 'constant' needs loss.aggregation_constant, for one the longest response in tokens"
    if loss.dual_clip is not None and loss.surrogate != "ppo_clip":
        yield f"loss.dual_clip bounds the surrogate 'ppo_clip'; leave it out with {loss.surrogate!r}"
    if (
        recipe.advantage.overlong_limit is not None
        and recipe.advantage.overlong_buffer > recipe.advantage.overlong_limit
    ):
        yield "advantage.overlong_buffer must be at most advantage.overlong_limit"
    weighs = loss.tis_cap is not None or any(measure.kind in ("truncate", "mask") for measure in loss.mismatch)
    if loss.decoupled is False and weighs and loss.surrogate != "mirror":
        yield (
            "loss.tis_cap and mismatch measures that weigh need a decoupled ratio: with loss.decoupled = false the "
            "ratio holds the gap between engine and trainer already, and it would count twice"
        )
    if loss.decoupled is None and loss.tis_cap is None and weighs:
        yield "loss.mismatch has a measure that weighs: set loss.decoupled = true"
    for place, measure in enumerate(loss.mismatch):
        yield from _measure(f"loss.mismatch[{place}]", measure)


def _likelihood(recipe: Recipe) -> Iterator[str]:
    """Of recipes that imitate and compare answers, whoever gave them."""
    kind, loss = recipe.advantage.kind, recipe.loss
    if not loss.w_rl:
        return
    if kind in ("liked", "every", "pairs") and loss.surrogate != "nll":
        yield f"advantage.kind {kind!r} weighs the likelihood of given tokens: set loss.surrogate to 'nll'"
    if kind != "pairs":
        return
    if loss.aggregation != "sequence_sum":
        yield "loss.aggregation: advantage.kind 'pairs' compares sums over answers; set it to 'sequence_sum'"
    if loss.normaliser != "component":
        yield "loss.normaliser: advantage.kind 'pairs' has a loss of its own; set it to 'component'"
    if recipe.optimizer.steps != 1:
        yield "optimizer.steps: advantage.kind 'pairs' weighs each pair before the step; set it to 1"


def _text(recipe: Recipe) -> Iterator[str]:
    """What reads the log-probs of whoever answered cannot be had of text."""
    loss = recipe.loss
    if recipe.batch.tokens != "text":
        return
    reads = [
        ("loss.surrogate", bool(loss.w_rl) and loss.surrogate != "nll", "set it to 'nll'"),
        ("distillation.kind", bool(loss.w_opd) and recipe.distillation.kind != "divergence", "set it to 'divergence'"),
        ("hint", recipe.hint is not None, "a hint goes into the prompt ids that a turn saw, so leave it out"),
        ("loss.tis_cap", loss.tis_cap is not None, "leave it out"),
        ("loss.mismatch", bool(loss.mismatch), "leave it out"),
        ("loss.decoupled", loss.decoupled is not None, "leave it out"),
        ("loss.max_logprob_gap", loss.max_logprob_gap is not None, "leave it out"),
        ("loss.kl_in", bool(loss.kl_coefficient) and loss.kl_in == "reward", "set it to 'loss'"),
    ]
    for field, wrong, what in reads:
        if wrong:
            yield f"{field}: batch.tokens 'text' knows no sampled ids and log-probs; {what}"


def _measure(path: str, measure: MismatchSpec) -> Iterator[str]:
    if measure.kind == "veto":
        if measure.low is None:
            yield f"{path}: a veto needs low, the least ratio that a token may have, for one 1e-4"
        return
    if measure.high is None:
        yield f"{path}: {measure.kind!r} needs high, for one 2.0"
    elif measure.kind == "truncate" and measure.low is not None:
        yield f"{path}: 'truncate' bounds from above only; leave low out"
    elif measure.low is not None and measure.low > measure.high:
        yield f"{path}: low {measure.low} must be at most high {measure.high}"
    elif measure.low is None and measure.high < 1 and measure.kind != "truncate" and measure.estimator == "k1":
        yield f"{path}: high {measure.high} below 1 needs a low (its default is 1 / high)"


def _lora(recipe: Recipe) -> Iterator[str]:
    if recipe.lora is None:
        return
    if not recipe.lora.targets:
        yield "lora.targets is empty: name layers, or leave the field out for every linear layer but the head"
    if "lm_head" in recipe.lora.targets:
        yield "lora.targets names lm_head, which gets no adapter: the head is computed in tiles, which know none"
