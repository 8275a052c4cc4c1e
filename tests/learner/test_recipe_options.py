"""Options that any recipe may set, each seen in what the step then does."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import make_sample, on_policy, tiny_model

from learner.companions import FrozenModel
from learner.estimators import ESTIMATORS, Credit
from learner.importance import MismatchSpec
from learner.measured import Entries, Measured
from learner.measuring import Others
from learner.objective import build_objective
from learner.options import step_options
from learner.samples import TrainingSample
from learner.step import PolicyTrainer
from learner.step_options import AdvantageOptions, DistillationOptions, StepOptions
from schemas.recipes import recipe_named
from schemas.recipes.advantages import ADVANTAGES

LR = StepOptions(lr=1e-3)

BY_REWARD = [kind for kind in ADVANTAGES if kind not in ("liked", "every", "pairs")]
"""The others train text: what a token is credited with does not follow from the reward and the KL alone."""


def taught(seed: int, response: int, reward: float | None = None, **more: Any) -> TrainingSample:
    """With a served teacher's entries: the sampled token first, then its successors."""
    sample = replace(make_sample(seed, response=response, reward=reward, teacher=True), **more)
    ids = np.stack([(sample.response_ids + step) % 61 for step in range(4)], 1).astype(np.int32)
    return replace(
        sample,
        teacher_topk_ids=ids,
        teacher_topk_logprobs=np.log(np.full((response, 4), 0.2, np.float32)),
        hinted_prompt_ids=np.array([4, 5], np.int32),
    )


@pytest.mark.parametrize("kind", BY_REWARD)
@pytest.mark.parametrize("distillation", ["sampled", "extrapolated", "topk", "divergence"])
def test_any_advantage_goes_with_any_distillation_each_by_its_own_tokens(kind: str, distillation: Any) -> None:
    """Two candidates of 2 and 3 tokens, a taught turn of 4, one of 5 that is both."""
    samples = [
        replace(make_sample(1, response=2, reward=1.0), group_id="g"),
        replace(make_sample(2, response=3, reward=-1.0), group_id="g"),
        taught(3, 4),
        taught(4, 5, 1.0, group_id="g"),
    ]
    options = replace(
        LR, w_rl=2.0, w_opd=0.5, advantage=AdvantageOptions(kind=kind),
        distillation=DistillationOptions(kind=distillation),
    )  # fmt: skip
    rl, opd = build_objective(samples, options).components
    assert (rl.name, opd.name) == ("rl", "opd")
    assert rl.weight.tolist() == pytest.approx([2.0 / 10] * 5 + [0.0] * 4 + [2.0 / 10] * 5)
    assert opd.weight.tolist() == pytest.approx([0.0] * 5 + [0.5 / 9] * 9)
    more = build_objective([*samples, taught(5, 7)], options).components[0]
    assert more.weight[:14].tolist() == pytest.approx(rl.weight.tolist())


def test_the_learning_rate_rises_over_the_warm_up_and_a_resumed_trainer_goes_on_with_it() -> None:
    options = replace(LR, lr=4e-3, warmup_steps=4, w_opd=0.0)
    trainer = PolicyTrainer(tiny_model(), options)
    rates = [trainer.train([make_sample(seed)]).metrics["learning_rate"] for seed in range(2)]
    again = PolicyTrainer(tiny_model(), options)
    again.load_state_dict(trainer.state_dict())
    rates += [again.train([make_sample(seed)]).metrics["learning_rate"] for seed in range(4)]
    assert rates == pytest.approx([1e-3, 2e-3, 3e-3, 4e-3, 4e-3, 4e-3])


def test_decoupled_ratios_are_one_at_the_first_step_and_coupled_ones_hold_the_gap() -> None:
    sample = make_sample(1)  # about 2 nats from the model's own log-probs
    clipped = {}
    for decoupled in (True, False):
        options = replace(LR, w_opd=0.0, decoupled=decoupled)
        clipped[decoupled] = PolicyTrainer(tiny_model(), options).train([sample]).metrics["clip_fraction_high"]
    assert clipped[True] == 0.0
    assert clipped[False] is not None
    assert clipped[False] > 0.2
    assert not StepOptions().is_decoupled
    assert StepOptions(tis_cap=2.0).is_decoupled
    assert not StepOptions(decoupled=False, tis_cap=2.0).is_decoupled


def test_tis_cap_is_a_measure_like_any_other() -> None:
    measures = (MismatchSpec(kind="truncate", high=1.5),)
    norms = [
        PolicyTrainer(tiny_model(), replace(LR, w_opd=0.0, **more)).train([make_sample(1)]).metrics["gradient_norm"]
        for more in ({"tis_cap": 1.5}, {"decoupled": True, "mismatch": measures})
    ]
    assert norms[0] == norms[1]


def test_kl_in_the_reward_lowers_the_credit_of_what_left_the_reference_and_masks_nothing_more() -> None:
    """binary-rl: A = r - beta sum of (l_old - l_ref), by hand."""
    sample = make_sample(1, response=2, reward=1.0)
    neutral = make_sample(2, response=3, reward=0.0)
    reference = torch.cat([torch.from_numpy(sample.response_logprobs) - torch.tensor([0.5, -0.2]), torch.zeros(3)])
    options = replace(LR, w_opd=0.0, kl_coefficient=0.1, kl_estimator="k1", kl_in="reward")
    (rl,) = build_objective([sample, neutral], options, Measured(reference=reference)).components
    assert rl.advantage[:2].tolist() == pytest.approx([1.0 - 0.1 * 0.3] * 2)
    assert rl.mask.tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("kind", BY_REWARD)
def test_kl_in_the_reward_pulls_every_advantage_to_the_reference(kind: str) -> None:
    """Two candidates of opposite reward that left the reference alike: whose KL is larger has the lower credit."""
    credit = Credit(
        rewards=[1.0, -1.0, 1.0],
        groups=["g"] * 3,
        earlier=[()] * 3,
        mask=torch.ones(6, dtype=torch.bool),
        lengths=[2, 2, 2],
        options=AdvantageOptions(kind=kind),
        values=torch.zeros(6),
    )
    kl = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.5, 0.5])
    plain = ESTIMATORS[kind](credit)
    pulled = ESTIMATORS[kind](replace(credit, kl=kl, kl_coefficient=0.2))
    assert float(plain.advantage[0]) == pytest.approx(float(plain.advantage[4]))
    assert float(pulled.advantage[0]) > float(pulled.advantage[4]) + 0.05
    assert torch.equal(plain.mask, pulled.mask)


def test_an_entry_that_the_teacher_did_not_score_is_masked_alone() -> None:
    """topk over S = {a, b}: a known to the teacher, b not."""
    sample = taught(1, 1)
    own = torch.log(torch.tensor([[0.6, 0.2]]))
    entries = Entries(torch.tensor([[7, 8]]), own, torch.tensor([[math.log(0.9), math.nan]]))
    options = replace(LR, w_rl=0.0, distillation=DistillationOptions(kind="topk", k=2))
    (opd,) = build_objective([sample], options, Measured(entries=entries)).components
    assert opd.taught is not None
    assert opd.taught.entry_mask is not None
    assert opd.taught.entry_advantage is not None
    assert opd.taught.entry_mask.tolist() == [[True, False]]
    # The share of a among S = {a, b} is 0.6 / 0.8.
    assert opd.taught.entry_advantage.tolist()[0] == pytest.approx([math.log(0.9 / 0.6) * 0.75, 0.0])
    none = Measured(entries=Entries(entries.ids, own, torch.full((1, 2), math.nan)))
    assert build_objective([sample], options, none).components == []


def test_the_reverse_kl_over_the_served_entries_pulls_the_policy_to_them() -> None:
    """The variant of opd-topk over the teacher's own entries and a bin for the rest: it falls step by step."""
    recipe = recipe_named("opd-topk", {"distillation": {"kind": "divergence", "entries": "teacher", "alpha": 1.0}})
    trainer = PolicyTrainer(tiny_model(), replace(step_options(recipe, 1000), lr=2e-3))
    losses = [trainer.train([taught(1, 5), taught(2, 3)]).metrics["opd_loss"] for _ in range(4)]
    assert all(value is not None and value > 0 for value in losses)
    assert losses == sorted(losses, key=lambda value: -(value or 0.0))
    assert (losses[-1] or 0.0) < 0.9 * (losses[0] or 0.0)


def test_an_overlong_answer_loses_part_of_its_reward() -> None:
    options = replace(LR, w_opd=0.0, advantage=AdvantageOptions(overlong_limit=6, overlong_buffer=4))
    (rl,) = build_objective([make_sample(1, response=5), make_sample(2, response=2)], options).components
    assert rl.advantage.tolist() == pytest.approx([0.25] * 5 + [1.0] * 2)


def test_values_are_read_and_the_critic_learns_once_the_policy_did() -> None:
    """A critic that says nothing: the returns are the reward, and it is told so with the component's own weights."""
    told: list[Any] = []

    class Silent:
        warming = False

        def values(self, forwards: Any, tokens: int) -> torch.Tensor:
            return torch.zeros(tokens)

        def learn(self, *each: torch.Tensor) -> dict[str, float | None]:
            told.append(each)
            return {"value_loss": 0.5}

        def state_dict(self) -> dict[str, Any]:
            return {"told": len(told)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            assert state == {"told": 1}

    options = replace(LR, w_opd=0.0, advantage=AdvantageOptions(kind="gae", gae_lambda=1.0))
    with pytest.raises(ValueError, match="give a critic"):
        PolicyTrainer(tiny_model(), options)
    trainer = PolicyTrainer(tiny_model(), options, Others(critic=Silent()))
    result = trainer.train([make_sample(1, response=2), make_sample(2, response=2, reward=None)])
    ((values, returns, mask, weight),) = told
    assert result.metrics["value_loss"] == 0.5
    assert values.tolist() == [0.0] * 4
    assert returns.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert mask.tolist() == [True, True, False, False]
    assert weight.tolist() == [0.5, 0.5, 0.0, 0.0]
    trainer.load_state_dict(trainer.state_dict())


def test_a_critic_that_warms_up_learns_alone() -> None:
    class Warming:
        warming = True

        def values(self, forwards: Any, tokens: int) -> torch.Tensor:
            return torch.zeros(tokens)

        def learn(self, *each: torch.Tensor) -> dict[str, float | None]:
            return {"value_loss": 0.25}

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            assert state == {}

    model = tiny_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    options = replace(LR, w_opd=0.0, advantage=AdvantageOptions(kind="gae"))
    result = PolicyTrainer(model, options, Others(critic=Warming())).train([make_sample(1)])
    assert result.metrics["value_loss"] == 0.25
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_companion_learns_of_the_samples_that_carried() -> None:
    seen: list[list[str]] = []

    class Watching(FrozenModel):
        def after_step(self, samples: Any) -> None:
            seen.append([sample.sample_id for sample in samples])

    options = replace(LR, w_opd=0.0, kl_coefficient=0.1)
    with pytest.raises(ValueError, match="reference model"):
        PolicyTrainer(tiny_model(), options)
    trainer = PolicyTrainer(tiny_model(), options, Others(reference=Watching(tiny_model())))
    result = trainer.train([make_sample(1), make_sample(2, reward=None), on_policy(tiny_model(), make_sample(3))])
    assert seen == [["s1", "s3"]]
    assert result.metrics["reference_kl"] == pytest.approx(0.0, abs=1e-6)
