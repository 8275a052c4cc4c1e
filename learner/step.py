"""One micro-batch, one or more optimizer steps: the same gradient however it is split into forward passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from learner.collate import Forward
from learner.corrections import with_corrections
from learner.importance import mismatch_weights
from learner.logprobs import response_scores
from learner.losses.kl import kl_estimate
from learner.measuring import Others
from learner.metrics import Metrics, finite, log_prob_gap, log_prob_metrics, objective_metrics
from learner.objective import Objective
from learner.optimizer import MasterAdamW
from learner.preparing import prepare
from learner.ranks import filled, total
from learner.samples import TrainingSample
from learner.silence import Silence
from learner.step_options import StepOptions
from learner.terms import Tokens, component_term

__all__ = ["Others", "PolicyTrainer", "StepOptions", "StepResult"]


@dataclass(frozen=True)
class StepResult:
    """What a micro-batch did. `skipped_reason`: `masked_batch`, `non_finite_batch` or `logprob_gap` where no step was
    taken and the parameters are bit for bit what they were; else None. `silent`: for each sample why no token of it
    carried a gradient (reason and words), None where one did."""

    metrics: Metrics
    skipped_reason: str | None
    silent: list[Silence | None]

    @property
    def carried(self) -> list[bool]:
        """For each sample whether any token of it carried a gradient."""
        return [reason is None for reason in self.silent]


@dataclass
class _Pass:
    """Sums over one pass through the micro-batch, of this rank's forward passes until they are joined."""

    loss: float = 0.0
    by_component: dict[str, float] = field(default_factory=dict)
    clipped_high: int = 0
    clipped_low: int = 0
    judged: int = 0
    weight: float = 0.0
    new: Tensor = field(default_factory=lambda: torch.zeros(0))
    entropy: Tensor = field(default_factory=lambda: torch.zeros(0))

    def join(self, forwards: list[Forward]) -> None:
        """Have every rank's sums; `forwards` are those that were run here."""
        self.new, self.entropy = filled(self.new, forwards), filled(self.entropy, forwards)
        own = [self.loss, self.weight, self.clipped_high, self.clipped_low, self.judged, *self.by_component.values()]
        self.loss, self.weight, high, low, judged, *components = total(own)
        self.clipped_high, self.clipped_low, self.judged = int(high), int(low), int(judged)
        self.by_component = dict(zip(self.by_component, components, strict=True))


class PolicyTrainer:
    """A policy that learns from micro-batches.

    Args:
        model: causal language model of transformers with `model.model` and `model.lm_head`; in eval mode, since
            dropout would make log-probs that nobody sampled with.
        options: see `StepOptions`.
        others: the models beside the policy that `options` ask.
        optimizer: that of `model`; made here where none is given. Companions lend values through it.

    Raises:
        ValueError: a model that the options need is missing.
    """

    def __init__(
        self,
        model: Any,
        options: StepOptions,
        others: Others | None = None,
        optimizer: MasterAdamW | None = None,
    ) -> None:
        self.others = others or Others()
        self.others.check(options)
        self.model = model.eval()
        self.options = options
        self.optimizer = optimizer or MasterAdamW(
            model, lr=options.lr, betas=options.betas, eps=options.eps, weight_decay=options.weight_decay
        )
        self._steps = 0

    def train(self, samples: Sequence[TrainingSample]) -> StepResult:
        """Take `options.steps` optimizer steps on `samples`.

        Decoupled (Hilton et al. 2022, arXiv 2110.00641) the ratio is to the trainer's own log-probs before the step,
        and the recipe's measures correct from those to the behaviour. Else it is to the behaviour's log-probs.

        Raises:
            InvalidSample: a sample must not be trained; nothing has changed.
        """
        turns, samples = samples, with_corrections(samples)
        ready = prepare(self.model, self.others, samples, self.options)
        objective, forwards, silent = ready.objective, ready.forwards, ready.silent[: len(turns)]
        metrics = objective_metrics(objective) | {"rejected_tokens": float(ready.rejected)}
        if not objective.components:
            return StepResult(metrics, "masked_batch", silent)
        proximal_N = objective.measured.proximal
        if proximal_N is not None:
            gap = log_prob_gap(proximal_N, objective.behaviour, objective.kept)
            if self._beyond(gap):
                return StepResult(metrics | {"logprob_gap_mean": gap}, "logprob_gap", silent)
        warming = self.others.critic is not None and self.options.needs_critic and self.others.critic.warming
        for number in range(0 if warming else self.options.steps):
            done = self._backward(forwards, objective, proximal_N)
            norm = self.optimizer.gradient_norm()
            if number == 0:
                proximal_N = done.new  # the first pass runs before any step, so it needs no pass of its own
                metrics |= log_prob_metrics(
                    done.new, objective.behaviour, done.entropy, objective.kept, objective.measured.reference
                )
                metrics["gradient_norm"] = finite(norm)
                metrics["loss"] = finite(done.loss)
                if self.options.measures:
                    metrics["mismatch_weight_mean"] = finite(done.weight / float(objective.kept.sum()))
                metrics |= {f"{name}_loss": finite(value) for name, value in done.by_component.items()}
                metrics |= self._loss_of_pairs(objective, done)
                if self._beyond(log_prob_gap(done.new, objective.behaviour, objective.kept)):
                    self.optimizer.discard()
                    return StepResult(metrics, "logprob_gap", silent)
            metrics["clip_fraction_high"] = done.clipped_high / done.judged
            metrics["clip_fraction_low"] = done.clipped_low / done.judged
            if finite(norm) is None or finite(done.loss) is None:
                self.optimizer.discard()
                # With several steps an earlier one has moved the weights; that one was sound and stays.
                if number == 0:
                    return StepResult(metrics, "non_finite_batch", silent)
                break
            metrics["learning_rate"] = self._warm_up()
            self.optimizer.step(self.options.max_grad_norm, norm)
            self._steps += 1
        metrics |= self._teach_others(samples, objective)
        return StepResult(metrics, None, silent)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on beside the samples, exact."""
        state: dict[str, Any] = {"optimizer": self.optimizer.state_dict(), "steps": self._steps}
        for name, other in self._stateful().items():
            state[name] = other.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore exactly what `state_dict` gave, and the model with it."""
        self.optimizer.load_state_dict(state["optimizer"])
        self._steps = state.get("steps", 0)  # states from before there was a warm-up have none
        for name, other in self._stateful().items():
            other.load_state_dict(state[name])

    def _stateful(self) -> dict[str, Any]:
        options, others = self.options, self.others
        found = {
            "teacher": others.teacher if options.needs_teacher else None,
            "critic": others.critic if options.needs_critic else None,
        }
        return {name: other for name, other in found.items() if other is not None}

    def _loss_of_pairs(self, objective: Objective, done: _Pass) -> Metrics:
        """The loss whose gradient the step takes; what the pass summed has that gradient and another value."""
        if objective.pairs is None:
            return {}
        rl = self.options.w_rl * float(objective.pairs.loss.double().mean())
        return {"rl_loss": finite(rl), "loss": finite(done.loss - done.by_component["rl"] + rl)}

    def _beyond(self, gap: float | None) -> bool:
        limit = self.options.max_logprob_gap
        return limit is not None and gap is not None and gap > limit

    def _warm_up(self) -> float:
        """Set the learning rate of the step to come."""
        options = self.options
        lr = options.lr * min(1.0, (self._steps + 1) / max(1, options.warmup_steps))
        if options.warmup_steps:
            self.optimizer.set_lr(lr)
        return lr

    def _teach_others(self, samples: Sequence[TrainingSample], objective: Objective) -> Metrics:
        """What learns beside the policy, once the policy's step was taken."""
        metrics: Metrics = {}
        options, others = self.options, self.others
        if options.needs_critic and others.critic is not None:
            assert objective.measured.values is not None
            assert objective.returns is not None
            assert objective.returns_weight is not None
            metrics = others.critic.learn(
                objective.measured.values, objective.returns, objective.signals["rl"][1], objective.returns_weight
            )
        carried = [sample for sample, kept in zip(samples, objective.carried(), strict=True) if kept]
        for companion in (others.reference, others.teacher):
            if companion is not None:
                companion.after_step(carried)
        return metrics

    def _backward(self, forwards: list[Forward], objective: Objective, proximal_N: Tensor | None) -> _Pass:
        done = _Pass(
            by_component={component.name: 0.0 for component in objective.components},
            new=torch.zeros_like(objective.behaviour),
            entropy=torch.zeros_like(objective.behaviour),
        )
        entries = objective.measured.entries
        for forward in forwards:
            part = forward.flat
            scores = response_scores(self.model, forward, at_ids_NK=None if entries is None else entries.ids[part])
            loss = self._loss(scores.chosen, scores.entropy, scores.at_ids, part, objective, proximal_N, done)
            done.loss += float(loss.detach())
            done.new[part] = scores.chosen.detach().cpu()
            done.entropy[part] = scores.entropy.detach().cpu()
            with self.optimizer.collecting():
                loss.backward()  # type: ignore[no-untyped-call]
        done.join(forwards)
        return done

    def _loss(
        self,
        new: Tensor,
        entropy: Tensor,
        new_entries: Tensor | None,
        part: Tensor,
        objective: Objective,
        proximal_N: Tensor | None,
        done: _Pass,
    ) -> Tensor:
        options = self.options
        device = new.device

        def here(values_N: Tensor) -> Tensor:
            return values_N[part].to(device)

        kept, behaviour, owners = here(objective.kept), here(objective.behaviour), here(objective.owners)
        proximal = new.detach() if proximal_N is None else here(proximal_N)
        correction = torch.ones_like(behaviour)
        if objective.correction is not None:
            correction = here(objective.correction)
        elif options.measures:  # they only weigh, so a pass with gradient can tell its own samples' weights
            correction, _ = mismatch_weights(proximal, behaviour, kept, owners, options.measures)
        if options.measures:
            done.weight += float(correction[kept].sum())
        old = proximal if options.is_decoupled else behaviour
        tokens = Tokens(new, old, owners, part, new_entries)
        loss = torch.zeros((), device=device)
        for component in objective.components:
            term = component_term(component, tokens, options)
            value = (term.loss * correction * here(component.weight)).sum()
            done.by_component[component.name] += float(value.detach())
            done.clipped_high += term.clipped_high
            done.clipped_low += term.clipped_low
            done.judged += term.judged
            loss = loss + value
        shared = here(objective.kept_weight)
        if options.entropy_coefficient:
            loss = loss - options.entropy_coefficient * (torch.where(kept, entropy, 0.0) * shared).sum()
        if options.kl_coefficient and options.kl_in == "loss":
            assert objective.measured.reference is not None
            kl = kl_estimate(new, here(objective.measured.reference), kept, options.kl_estimator)
            loss = loss + options.kl_coefficient * (kl * shared).sum()
        return loss
