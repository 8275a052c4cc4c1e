"""The critic: the value before each token; learning that leaves policy and masked tokens alone; exact repeats."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import pytest
import torch
from tiny import VOCABULARY, make_sample, mixed_samples, same_weights, tiny_model, weights

from learner.collate import plan_forwards
from learner.critic import Critic, CriticOptions, value_metrics
from learner.samples import TrainingSample


def critic(model: Any, **options: Any) -> Critic:
    chosen = CriticOptions(**{"lr": 0.05, "clip": None, **options})
    return Critic(copy.deepcopy(model) if chosen.kind == "model" else model, chosen)


def tokens(samples: list[TrainingSample]) -> int:
    return sum(len(sample.response_ids) for sample in samples)


def ask(one: Critic, samples: list[TrainingSample], budget: int = 25) -> torch.Tensor:
    return one.values(plan_forwards(samples, budget), tokens(samples))


def learn(one: Critic, samples: list[TrainingSample], returns_N: torch.Tensor | None = None, budget: int = 25) -> Any:
    values_N = ask(one, samples, budget)
    mask_N = torch.ones(len(values_N), dtype=torch.bool)
    returns_N = torch.linspace(-1, 1, len(values_N)) if returns_N is None else returns_N
    return one.learn(values_N, returns_N, mask_N, mask_N / mask_N.sum())


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


@pytest.mark.parametrize("kind", ["head", "model"])
def test_the_value_before_a_token_knows_what_is_before_it_and_nothing_more(kind: str) -> None:
    """Written out with the whole hidden states: token t is valued at column prompt + t - 1."""
    model = tiny_model()
    one = critic(model, kind=kind)
    with torch.no_grad():
        torch.nn.init.normal_(one._head.weight, generator=torch.Generator().manual_seed(1))
    samples = mixed_samples()
    values_N = ask(one, samples)
    expected = []
    for sample in samples:
        ids = torch.tensor([*sample.prompt_ids.tolist(), *sample.response_ids.tolist()])
        with torch.no_grad():
            hidden = model.model(ids[None]).last_hidden_state[0]
            expected.append(hidden[len(sample.prompt_ids) - 1 : -1] @ one._head.weight[0] + one._head.bias)
    torch.testing.assert_close(values_N, torch.cat(expected), rtol=1e-5, atol=1e-5)

    changed = make_sample(1, prompt=3, response=7)
    changed.response_ids[-1] = (changed.response_ids[-1] + 1) % VOCABULARY
    assert torch.equal(ask(one, [changed]), ask(one, [make_sample(1, prompt=3, response=7)]))


def test_a_fresh_critic_says_zero() -> None:
    assert torch.equal(ask(critic(tiny_model()), mixed_samples()), torch.zeros(25))


@pytest.mark.parametrize("kind", ["head", "model"])
def test_it_learns_the_returns_and_leaves_the_policy_alone(kind: str) -> None:
    model = tiny_model()
    before = weights(model)
    one = critic(model, kind=kind, lr=0.3 if kind == "head" else 0.01)
    samples = mixed_samples()
    returns_N = torch.linspace(-1, 1, tokens(samples))
    first = learn(one, samples, returns_N)
    for _ in range(40):
        last = learn(one, samples, returns_N)
    assert first["explained_variance"] == 0.0
    assert last["explained_variance"] > 0.9
    assert last["value_loss"] < 0.1 * first["value_loss"]
    assert same_weights(weights(model), before)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("kind", ["head", "model"])
def test_the_gradient_is_the_same_however_the_batch_is_split(kind: str) -> None:
    samples, seen = mixed_samples(), []
    for budget in (1, 20, 1000):
        one = critic(tiny_model(), kind=kind)
        torch.nn.init.ones_(one._head.weight)
        gradients: list[list[torch.Tensor]] = []
        one._optimizer.step = lambda *_, one=one, into=gradients: into.append(list(one._optimizer._gradients))  # type: ignore[method-assign]
        seen.append((learn(one, samples, budget=budget)["value_loss"], gradients[0]))
    assert len(seen[0][1]) == (2 if kind == "head" else 22)
    for loss, gradient in seen[1:]:
        assert loss == pytest.approx(seen[0][0], rel=1e-6)
        for part, expected in zip(gradient, seen[0][1], strict=True):
            assert float((part - expected).abs().max()) <= 1e-6 * max(1.0, float(expected.norm()))


def test_the_gradient_of_the_head_by_hand() -> None:
    """Loss = mean of (v - R)^2 / 2 at v = 0: d/dw = - mean(R h), d/db = - mean(R)."""
    model = tiny_model()
    one = critic(model, max_grad_norm=1e9)
    sample = make_sample(1)
    returns_N = torch.tensor([1.0, -0.5, 0.25, 2.0, 1.0])
    ids = torch.tensor([*sample.prompt_ids.tolist(), *sample.response_ids.tolist()])
    with torch.no_grad():
        hidden_NH = model.model(ids[None]).last_hidden_state[0][3:-1]
    metrics = learn(one, [sample], returns_N)
    gradient = torch.cat([-(returns_N[:, None] * hidden_NH).mean(0), -returns_N.mean()[None]])
    assert metrics["critic_gradient_norm"] == pytest.approx(float(gradient.norm()), rel=1e-5)
    assert metrics["value_loss"] == pytest.approx(float(returns_N.square().mean() / 2), rel=1e-6)


def test_a_masked_token_teaches_nothing() -> None:
    sample = make_sample(1)
    mask_N = torch.tensor([True, True, False, True, False])
    heads = []
    for junk in (0.0, 1e6, math.nan):
        one = critic(tiny_model())
        values_N = ask(one, [sample])
        returns_N = torch.where(mask_N, torch.ones(5), torch.full((5,), junk))
        metrics = one.learn(values_N, returns_N, mask_N, mask_N / 3)
        assert metrics["return_mean"] == 1.0
        heads.append(ask(one, [sample]))
    assert torch.equal(heads[0], heads[1])
    assert torch.equal(heads[0], heads[2])


def test_a_value_that_has_moved_by_the_clip_gives_no_more_gradient() -> None:
    """Without momentum, which would carry it on, it then stays where it is."""
    sample, plain = make_sample(1), {"steps": 40, "lr": 0.005, "betas": (0.0, 0.95)}
    bounded, free = critic(tiny_model(), clip=0.1, **plain), critic(tiny_model(), clip=None, **plain)
    metrics = learn(bounded, [sample], torch.full((5,), 10.0))
    learn(free, [sample], torch.full((5,), 10.0))
    assert metrics["value_clip_fraction"] == 1.0
    assert 0.05 < float(ask(bounded, [sample]).max()) < 0.3
    assert float(ask(free, [sample]).min()) > 1


@pytest.mark.parametrize("kind", ["head", "model"])
def test_a_gradient_that_is_not_finite_takes_no_step(kind: str) -> None:
    one, witness = critic(tiny_model(), kind=kind), critic(tiny_model(), kind=kind)
    samples = mixed_samples()
    for each in (one, witness):
        learn(each, samples)
    metrics = learn(one, samples, torch.full((25,), math.inf))
    assert metrics["critic_gradient_norm"] is None
    assert metrics["value_loss"] is None
    assert all(value is None or math.isfinite(value) for value in metrics.values())
    assert torch.equal(ask(one, samples), ask(witness, samples))
    for each in (one, witness):
        learn(each, samples)
    assert torch.equal(ask(one, samples), ask(witness, samples))


@pytest.mark.parametrize("kind", ["head", "model"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_restored_critic_goes_on_bit_for_bit(kind: str, dtype: torch.dtype) -> None:
    samples = mixed_samples()
    whole = critic(tiny_model(dtype=dtype), kind=kind, steps=2)
    first = critic(tiny_model(dtype=dtype), kind=kind, steps=2)
    for each in (whole, first):
        for _ in range(3):
            learn(each, samples)
    second = critic(tiny_model(dtype=dtype), kind=kind, steps=2)
    second.load_state_dict(through_a_file(first.state_dict()))
    for each in (whole, second):
        for _ in range(2):
            learn(each, samples)
    assert torch.equal(ask(whole, samples), ask(second, samples))


def test_it_warms_up_for_the_first_micro_batches_and_remembers_how_many() -> None:
    one = critic(tiny_model(), warmup_batches=2)
    seen = []
    for _ in range(3):
        seen.append(one.warming)
        learn(one, [make_sample(1)])
    assert seen == [True, True, False]
    other = critic(tiny_model(), warmup_batches=2)
    other.load_state_dict(through_a_file(one.state_dict()))
    assert not other.warming
    assert not critic(tiny_model()).warming


def test_explained_variance_by_hand_and_absent_where_returns_do_not_vary() -> None:
    mask = torch.tensor([True, True, True, False])
    returns = torch.tensor([1.0, 2.0, 3.0, math.nan])
    perfect = value_metrics(returns, returns, mask)
    assert (perfect["explained_variance"], perfect["value_mean"], perfect["return_mean"]) == (1.0, 2.0, 2.0)
    assert value_metrics(torch.zeros(4), returns, mask)["explained_variance"] == 0.0
    assert value_metrics(-returns, returns, mask)["explained_variance"] == pytest.approx(-3.0)
    assert value_metrics(returns, torch.ones(4), mask)["explained_variance"] is None
    assert set(value_metrics(returns, returns, torch.zeros(4, dtype=torch.bool)).values()) == {None}
