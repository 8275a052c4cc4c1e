"""Each preset's loss and gradient against its formula written out: whole logits, one sample at a time, no masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import make_sample, tiny_model
from torch import Tensor

from learner.companions import FrozenModel
from learner.measuring import Others
from learner.options import step_options
from learner.samples import TrainingSample
from learner.step import PolicyTrainer
from schemas.recipes import recipe_named

K = 12
"""Entries that the served teacher scores: of the student's 4 likeliest among 61 some are among them, some are not."""


def candidates() -> list[TrainingSample]:
    """A group of three in one session, one of two; behaviour log-probs of nobody, so every clip acts somewhere."""
    rewards = [("g", 1.0), ("g", -1.0), ("g", 0.0), ("h", 1.0), ("h", -1.0)]
    return [
        replace(make_sample(seed, response=2 + seed, reward=reward, behaviour=-3.5), group_id=group)
        for seed, (group, reward) in enumerate(rewards)
    ]


def taught() -> list[TrainingSample]:
    """Two turns with a teacher's scores, as a server gives them, and its prompt."""
    found = []
    for seed in (11, 12):
        sample = make_sample(seed, response=seed - 8, reward=None, teacher=True)
        generator = np.random.default_rng(seed)
        ids = np.stack([generator.permutation(61)[:K] for _ in sample.response_ids]).astype(np.int32)
        scores = np.log(generator.dirichlet(np.ones(K + 5), len(ids))[:, :K]).astype(np.float32)
        hinted = np.concatenate([sample.prompt_ids, np.array([3, 1], np.int32)])
        found.append(replace(sample, teacher_topk_ids=ids, teacher_topk_logprobs=scores, hinted_prompt_ids=hinted))
    return found


@dataclass
class Turn:
    """One sample over whole logits: `full` [T, V] with gradient, `new` and `old` [T], `before` [T, V] without."""

    sample: TrainingSample
    full: Tensor
    before: Tensor
    new: Tensor
    old: Tensor
    ratio: Tensor

    @classmethod
    def of(cls, model: Any, sample: TrainingSample) -> Turn:
        full = whole(model, sample)
        ids = torch.from_numpy(sample.response_ids.astype(np.int64))
        new, old = full.gather(-1, ids[:, None])[:, 0], torch.from_numpy(sample.response_logprobs)
        return cls(sample, full, full.detach(), new, old, (new - old).exp())

    @property
    def reward(self) -> float:
        assert self.sample.reward is not None
        return self.sample.reward

    def at(self, log_probs: Tensor) -> Tensor:
        """The sampled tokens' entries of [T, V]."""
        return log_probs.gather(-1, torch.from_numpy(self.sample.response_ids.astype(np.int64))[:, None])[:, 0]


def whole(model: Any, sample: TrainingSample) -> Tensor:
    """Log-probs [T, V] in the response's places."""
    ids = torch.tensor([*sample.prompt_ids.tolist(), *sample.response_ids.tolist()])
    logits: Tensor = model(ids[None]).logits[0]
    return torch.log_softmax(logits, -1)[len(sample.prompt_ids) - 1 : -1]


def clip(ratio: Tensor, advantage: Tensor | float, high: float = 0.28) -> Tensor:
    return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1 + high) * advantage)


def group_of(turns: list[Turn], turn: Turn) -> Tensor:
    return torch.tensor([one.reward for one in turns if one.sample.group_id == turn.sample.group_id])


def grpo(turns: list[Turn]) -> Tensor:
    losses = []
    for turn in turns:
        group = group_of(turns, turn)
        losses.append(clip(turn.ratio, float((turn.reward - group.mean()) / (group.std() + 1e-6))).mean())
    return torch.stack(losses).mean()


def dr_grpo(turns: list[Turn]) -> Tensor:
    return sum_of(clip(t.ratio, float(t.reward - group_of(turns, t).mean())).sum() / 1024 for t in turns) / len(turns)


def k15(turns: list[Turn]) -> Tensor:
    gaps = [(turn, turn.new - turn.old) for turn in turns]
    return sum_of((-(t.reward - group_of(turns, t).mean()) * d + 0.05 * d**2).mean() for t, d in gaps) / len(turns)


def k25(turns: list[Turn]) -> Tensor:
    tokens, total = 0, torch.zeros(())
    for turn in turns:
        group, gap = group_of(turns, turn), turn.new - turn.old
        inside = (gap.detach() >= -0.5) & (gap.detach() <= 0.5)
        held = torch.where(inside, gap, gap.detach().clamp(-0.5, 0.5)).exp()
        total = total - (held * ((turn.reward - group.mean()) / (group.std() + 1e-6))).sum()
        tokens += len(gap)
    return total / tokens


def reinforce(turns: list[Turn]) -> Tensor:
    rewards = torch.cat([torch.full((len(turn.new),), turn.reward) for turn in turns])
    advantages = ((rewards - rewards.mean()) / (rewards.var() + 1e-8).sqrt()).split([len(turn.new) for turn in turns])
    weights = [turn.ratio.detach().clamp(max=2.0) for turn in turns]
    ones = [(turn.new - turn.new.detach()).exp() for turn in turns]
    total = sum_of((-w * a * one).sum() for w, a, one in zip(weights, advantages, ones, strict=True))
    return total / len(rewards)


def exopd(turns: list[Turn]) -> Tensor:
    reference, total, tokens = tiny_model(7), torch.zeros(()), 0
    for turn in turns:
        ref = turn.at(whole(reference, turn.sample)).detach()
        assert turn.sample.teacher_logprobs is not None
        teacher = torch.from_numpy(turn.sample.teacher_logprobs)
        advantage = 1.25 * (teacher - ref) - (turn.old - ref)
        total = total - (turn.ratio.detach().clamp(max=5.0) * advantage * (turn.new - turn.new.detach()).exp()).sum()
        tokens += len(advantage)
    return total / tokens


def opd_topk(turns: list[Turn]) -> Tensor:
    total, tokens = torch.zeros(()), 0
    for turn in turns:
        sample = turn.sample
        assert sample.teacher_topk_ids is not None
        assert sample.teacher_topk_logprobs is not None
        for place, top in enumerate(turn.before.topk(4).indices):
            known = dict(
                zip(sample.teacher_topk_ids[place].tolist(), sample.teacher_topk_logprobs[place].tolist(), strict=True)
            )
            shares = torch.softmax(turn.before[place, top], -1)
            found = [(v, share) for v, share in zip(top.tolist(), shares.tolist(), strict=True) if v in known]
            for v, share in found:
                gain = min(1.0, max(-1.0, known[v] - float(turn.before[place, v])))
                total = total + clip((turn.full[place, v] - turn.before[place, v]).exp(), gain * share, high=0.2)
            tokens += bool(found)
    assert 0 < tokens < sum(len(turn.new) for turn in turns)
    return total / tokens


def sdpo(turns: list[Turn]) -> Tensor:
    total, tokens = torch.zeros(()), 0
    for turn in turns:
        assert turn.sample.hinted_prompt_ids is not None
        teacher = whole(tiny_model(8), replace(turn.sample, prompt_ids=turn.sample.hinted_prompt_ids)).detach().exp()
        student = turn.full.exp()
        for place, top in enumerate(turn.before.topk(20).indices):
            s, t = (torch.cat([each[place, top], 1 - each[place, top].sum()[None]]) for each in (student, teacher))
            mixture = (s + t) / 2
            total = total + ((s * (s / mixture).log()).sum() + (t * (t / mixture).log()).sum()) / 2
            tokens += 1
    return total / tokens


def sum_of(values: Any) -> Tensor:
    return torch.stack(list(values)).sum()


FORMULAS: dict[str, tuple[Callable[[list[Turn]], Tensor], Callable[[], list[TrainingSample]]]] = {
    "grpo": (grpo, candidates),
    "best-of-n": (grpo, candidates),
    "dr-grpo": (dr_grpo, candidates),
    "k1.5": (k15, candidates),
    "k2.5": (k25, candidates),
    "reinforce++": (reinforce, candidates),
    "exopd": (exopd, taught),
    "g-opd": (exopd, taught),
    "opd-topk": (opd_topk, taught),
    "sdpo": (sdpo, taught),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_loss_and_gradient_are_those_of_the_formula(name: str) -> None:
    formula, samples = FORMULAS[name]
    recipe = recipe_named(name, {"distillation": {"k": 20}} if name == "sdpo" else {})
    others = Others(reference=FrozenModel(tiny_model(7)), teacher=FrozenModel(tiny_model(8)))
    trainer = PolicyTrainer(tiny_model(), replace(step_options(recipe, 1000), max_grad_norm=1e9), others)
    seen: list[Tensor] = []
    step = trainer.optimizer.step

    def spy(max_norm: float, norm: float) -> None:
        seen.extend(g.clone() for g in trainer.optimizer._gradients if g is not None)
        step(max_norm, norm)

    trainer.optimizer.step = spy  # type: ignore[method-assign]
    metrics = trainer.train(samples()).metrics

    model = tiny_model()
    loss = formula([Turn.of(model, sample) for sample in samples()])
    loss.backward()  # type: ignore[no-untyped-call]
    assert metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-5, abs=1e-6)
    expected = [parameter.grad for parameter in model.parameters()]
    assert any(float(one.abs().max()) > 1e-4 for one in expected if one is not None)
    for ours, theirs in zip(seen, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-6)
