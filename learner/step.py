"""One micro-batch, one or more optimizer steps: the same gradient however it is split into forward passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from learner.collate import Forward, plan_forwards
from learner.importance import truncated_weight
from learner.logprobs import response_log_probs
from learner.losses.kl import kl_estimate
from learner.losses.ppo_clip import ppo_clip
from learner.metrics import Metrics, finite, log_prob_metrics, objective_metrics
from learner.objective import Objective, StepOptions, build_objective
from learner.optimizer import MasterAdamW
from learner.samples import TrainingSample


@dataclass(frozen=True)
class StepResult:
    """What a micro-batch did. `skipped_reason`: `masked_batch` or `non_finite_batch` where no step was taken and the
    parameters are bit for bit what they were; else None. `carried`: for each sample whether any token of it carried a
    gradient."""

    metrics: Metrics
    skipped_reason: str | None
    carried: list[bool]


@dataclass
class _Pass:
    """Sums over one pass through the micro-batch."""

    loss: float = 0.0
    by_component: dict[str, float] = field(default_factory=dict)
    clipped_high: int = 0
    clipped_low: int = 0
    new: Tensor = field(default_factory=lambda: torch.zeros(0))
    entropy: Tensor = field(default_factory=lambda: torch.zeros(0))


class PolicyTrainer:
    """A policy that learns from micro-batches.

    Args:
        model: causal language model of transformers with `model.model` and `model.lm_head`; in eval mode, since
            dropout would make log-probs that nobody sampled with.
        options: see `StepOptions`.
        reference: frozen model for the KL term; needed where `options.kl_coefficient` is not 0.

    Raises:
        ValueError: a KL term without a reference.
    """

    def __init__(self, model: Any, options: StepOptions, reference: Any | None = None) -> None:
        if options.kl_coefficient and reference is None:
            raise ValueError("kl_coefficient is set: give the reference model that the KL is measured to")
        self.model = model.eval()
        self.options = options
        self.reference = reference
        self.optimizer = MasterAdamW(
            model, lr=options.lr, betas=options.betas, eps=options.eps, weight_decay=options.weight_decay
        )

    def train(self, samples: Sequence[TrainingSample]) -> StepResult:
        """Take `options.steps` optimizer steps on `samples`.

        With a TIS cap the surrogate is decoupled (Hilton et al. 2022, arXiv 2110.00641): the ratio is to the trainer's
        own log-probs before the step, and a truncated weight corrects from those to the behaviour. Without one the
        ratio is to the behaviour's log-probs.

        Raises:
            InvalidSample: a sample must not be trained; nothing has changed.
        """
        objective = build_objective(samples, self.options)
        metrics = objective_metrics(objective)
        if not objective.components:
            return StepResult(metrics, "masked_batch", [False] * len(samples))
        carried = [bool(kept.any()) for kept in torch.split(objective.kept, [len(s.response_ids) for s in samples])]
        forwards = plan_forwards(samples, self.options.tokens_per_forward, carried)
        reference_N = self._reference_log_probs(forwards, objective)
        proximal_N: Tensor | None = None
        for number in range(self.options.steps):
            done = self._backward(forwards, objective, proximal_N, reference_N)
            norm = self.optimizer.gradient_norm()
            if number == 0:
                proximal_N = done.new  # the first pass runs before any step, so it needs no pass of its own
                metrics |= log_prob_metrics(done.new, objective.behaviour, done.entropy, objective.kept)
                metrics["gradient_norm"] = finite(norm)
                metrics["loss"] = finite(done.loss)
                metrics |= {f"{name}_loss": finite(value) for name, value in done.by_component.items()}
            kept = float(objective.kept.sum())
            metrics["clip_fraction_high"] = done.clipped_high / kept
            metrics["clip_fraction_low"] = done.clipped_low / kept
            if finite(norm) is None or finite(done.loss) is None:
                self.optimizer.discard()
                # With several steps an earlier one has moved the weights; that one was sound and stays.
                return StepResult(metrics, "non_finite_batch" if number == 0 else None, carried)
            self.optimizer.step(self.options.max_grad_norm, norm)
        return StepResult(metrics, None, carried)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on beside the samples, exact."""
        return {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore exactly what `state_dict` gave, and the model with it."""
        self.optimizer.load_state_dict(state["optimizer"])

    def _backward(
        self, forwards: list[Forward], objective: Objective, proximal_N: Tensor | None, reference_N: Tensor | None
    ) -> _Pass:
        done = _Pass(
            by_component={component.name: 0.0 for component in objective.components},
            new=torch.zeros_like(objective.behaviour),
            entropy=torch.zeros_like(objective.behaviour),
        )
        for forward in forwards:
            part = forward.flat
            new, entropy = response_log_probs(self.model, forward)
            loss = self._loss(new, entropy, part, objective, proximal_N, reference_N, done)
            done.loss += float(loss.detach())
            done.new[part] = new.detach().cpu()
            done.entropy[part] = entropy.detach().cpu()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.collect()
        return done

    def _loss(
        self,
        new: Tensor,
        entropy: Tensor,
        part: Tensor,
        objective: Objective,
        proximal_N: Tensor | None,
        reference_N: Tensor | None,
        done: _Pass,
    ) -> Tensor:
        options = self.options
        device = new.device

        def here(values_N: Tensor) -> Tensor:
            return values_N[part].to(device)

        kept, behaviour = here(objective.kept), here(objective.behaviour)
        old, correction = behaviour, torch.ones_like(behaviour)
        if options.tis_cap is not None:
            old = new.detach() if proximal_N is None else here(proximal_N)
            correction = truncated_weight(old, behaviour, kept, options.tis_cap)
        loss = torch.zeros((), device=device)
        for component in objective.components:
            clip = ppo_clip(
                new,
                old,
                here(component.advantage),
                here(component.mask),
                clip_low=options.clip_low,
                clip_high=options.clip_high,
                dual_clip=options.dual_clip,
            )
            term = (clip.loss * correction * here(component.weight)).sum()
            done.by_component[component.name] += float(term.detach())
            done.clipped_high += int(clip.clipped_high.sum())
            done.clipped_low += int(clip.clipped_low.sum())
            loss = loss + term
        shared = here(objective.kept_weight)
        if options.entropy_coefficient:
            loss = loss - options.entropy_coefficient * (torch.where(kept, entropy, 0.0) * shared).sum()
        if options.kl_coefficient and reference_N is not None:
            kl = kl_estimate(new, here(reference_N), kept, options.kl_estimator)
            loss = loss + options.kl_coefficient * (kl * shared).sum()
        return loss

    def _reference_log_probs(self, forwards: list[Forward], objective: Objective) -> Tensor | None:
        if not self.options.kl_coefficient:
            return None
        return self._log_probs(self.reference, forwards, objective)

    @staticmethod
    @torch.no_grad()
    def _log_probs(model: Any, forwards: list[Forward], objective: Objective) -> Tensor:
        values_N = torch.zeros_like(objective.behaviour)
        for forward in forwards:
            values_N[forward.flat] = response_log_probs(model, forward)[0].cpu()
        return values_N
