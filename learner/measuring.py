"""The passes without gradient before a step: the policy's own scores, a reference's, a teacher's and a critic's.

Each is made only where the recipe reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from learner.advantages.topk import scores_at
from learner.collate import Forward
from learner.companions import Companion
from learner.logprobs import response_scores
from learner.measured import Entries, Measured
from learner.metrics import Metrics
from learner.objective import Objective
from learner.own_teacher import teach
from learner.ranks import filled
from learner.samples import TrainingSample
from learner.step_options import StepOptions


class ValueFunction(Protocol):
    """What a step asks of a critic; see `learner.critic`."""

    @property
    def warming(self) -> bool:
        """Whether the micro-batch in hand trains the critic alone."""

    def values(self, forwards: Sequence[Forward], tokens: int) -> Tensor:
        """Values float32 [tokens] before any learning."""

    def learn(self, values_N: Tensor, returns_N: Tensor, mask_N: Tensor, weight_N: Tensor) -> Metrics:
        """Step towards the returns."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next micro-batch depends on."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore exactly what `state_dict` gave."""


@dataclass(frozen=True, kw_only=True)
class Others:
    """The models beside the policy that a recipe asks; None where it does not.

    Raises:
        ValueError: from `check`, one that the options need is missing.
    """

    reference: Companion | None = None
    teacher: Companion | None = None
    critic: ValueFunction | None = None

    def check(self, options: StepOptions) -> None:
        """Refuse to train without a model that the loss reads."""
        if options.needs_reference and self.reference is None:
            raise ValueError("the recipe measures to a reference model (KL or extrapolation): give it")
        if options.needs_teacher and self.teacher is None:
            raise ValueError(f"the recipe's teacher has the weights {options.teacher.weights!r}: give it")
        if options.needs_critic and self.critic is None:
            raise ValueError("the recipe's advantage reads values: give a critic")


@dataclass(frozen=True, eq=False)
class Top:
    """Ids int64 [N, K] and log-probs float32 [N, K] of the likeliest entries, by rank."""

    ids: Tensor
    log_probs: Tensor


@torch.no_grad()
def measure(
    model: Any,
    others: Others,
    samples: Sequence[TrainingSample],
    forwards: Sequence[Forward],
    prior: Objective,
    options: StepOptions,
) -> Measured:
    """Everything of `Measured` that `options` read, over the tokens of `forwards`, which are this rank's share, and of
    what the other ranks have: the same on every rank."""
    tokens, k = len(prior.behaviour), min(options.distillation.k, len(model.lm_head.weight))
    students = options.needs_entries and options.distillation.entries == "student"
    own: Tensor | None = None
    top: Top | None = None
    if options.needs_own_scores:
        own, top = _scores(model, forwards, tokens, top_k=k if students else None)
    reference = None
    if options.needs_reference:
        assert others.reference is not None
        with others.reference.model() as frozen:
            reference, _ = _scores(frozen, forwards, tokens)
    teacher, entries = None, None
    if options.needs_teacher:
        assert others.teacher is not None
        asked = [bool(part.any()) for part in torch.split(prior.signals["opd"][1], prior.lengths)]
        own_teacher = teach(
            others.teacher,
            samples,
            options.tokens_per_forward,
            asked=asked,
            at_ids_NK=None if top is None else top.ids,
            top_k=k if options.needs_entries and top is None else None,
        )
        teacher = own_teacher.chosen
        if own_teacher.ids is not None and own_teacher.logprobs is not None:
            entries = Entries(own_teacher.ids, None if top is None else top.log_probs, own_teacher.logprobs)
    elif options.needs_entries:
        entries = _served(samples, tokens, k, top)
    values = None
    if options.needs_critic:
        assert others.critic is not None
        values = others.critic.values(forwards, tokens)
    return Measured(proximal=own, reference=reference, values=values, teacher=teacher, entries=entries)


def _scores(
    model: Any, forwards: Sequence[Forward], tokens: int, *, top_k: int | None = None
) -> tuple[Tensor, Top | None]:
    """Log-probs [tokens] of the response tokens, 0 where no pass has them, and the likeliest entries: of `forwards`,
    and of what other ranks have."""
    chosen_N = torch.zeros(tokens)
    top: Top | None = None
    for forward in forwards:
        scores = response_scores(model, forward, top_k=top_k)
        chosen_N[forward.flat] = scores.chosen.float().cpu()
        if scores.top_ids is None or scores.top_logprobs is None:
            continue
        if top is None:
            shape = tokens, scores.top_ids.shape[1]
            top = Top(torch.zeros(shape, dtype=torch.long), torch.full(shape, torch.nan))
        top.ids[forward.flat] = scores.top_ids.cpu()
        top.log_probs[forward.flat] = scores.top_logprobs.float().cpu()
    if top is not None:
        top = Top(filled(top.ids, forwards), filled(top.log_probs, forwards))
    return filled(chosen_N, forwards), top


def _served(samples: Sequence[TrainingSample], tokens: int, k: int, top: Top | None) -> Entries:
    """The server's scores at the student's likeliest entries, NaN where it gave none; or, without `top`, at its own `k`
    likeliest."""
    width = k if top is None else top.ids.shape[1]
    ids_NK = torch.zeros(tokens, width, dtype=torch.long) if top is None else top.ids
    teacher_NK = torch.full((tokens, width), torch.nan)
    start = 0
    for sample in samples:
        end = start + len(sample.response_ids)
        if sample.teacher_topk_ids is not None and sample.teacher_topk_logprobs is not None:
            their_ids = torch.from_numpy(sample.teacher_topk_ids.astype("int64"))
            their_scores = torch.from_numpy(sample.teacher_topk_logprobs.copy())
            if top is None:
                ids_NK[start:end] = their_ids[:, :k]
                teacher_NK[start:end] = their_scores[:, :k]
            else:
                teacher_NK[start:end] = scores_at(their_ids, their_scores, ids_NK[start:end])
        start = end
    return Entries(ids_NK, None if top is None else top.log_probs, teacher_NK)
