"""KL estimators: by hand, by numeric gradients, in their expectation, and against peers."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from vectors import case, inputs, matrix, needs_reference, same

from learner.losses.kl import KlEstimator, kl_estimate

CALM = [0, 1, 2, 3, 5, 6]  # a k3 below 10; beyond, verl holds the result itself at 10 and gives no gradient


def test_by_hand() -> None:
    policy, reference = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -2.0])
    everywhere = torch.ones(2).bool()
    assert kl_estimate(policy, reference, everywhere, "k1").tolist() == [0.5, 0.0]
    assert kl_estimate(policy, reference, everywhere, "k2").tolist() == [0.125, 0.0]
    assert kl_estimate(policy, reference, everywhere, "k3").tolist() == pytest.approx([math.exp(-0.5) - 0.5, 0.0])
    with pytest.raises(ValueError, match="k1, k2, k3"):
        kl_estimate(policy, reference, everywhere, "k4")  # type: ignore[arg-type]


def test_k1_and_k3_have_the_true_kl_as_their_mean_over_the_first_arguments_samples() -> None:
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    true = float((p * (p / q).log()).sum())
    everywhere = torch.ones(3).bool()
    for estimator in ("k1", "k3"):
        estimate = kl_estimate(p.log(), q.log(), everywhere, estimator)
        assert float((p * estimate).sum()) == pytest.approx(true)
        swapped = kl_estimate(q.log(), p.log(), everywhere, estimator)
        assert float((p * swapped).sum()) != pytest.approx(true, rel=0.1)


@pytest.mark.parametrize("estimator", get_args(KlEstimator))
def test_masked_places_do_not_matter_and_gradients_are_right(estimator: KlEstimator) -> None:
    mask = torch.tensor([True, False, True])
    policy = torch.tensor([-1.0, math.nan, -3.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-1.3, math.inf, -2.0], dtype=torch.float64)
    value = kl_estimate(policy, reference, mask, estimator)
    assert value[1] == 0
    (gradient,) = torch.autograd.grad(value.sum(), policy)
    assert gradient[1] == 0
    clean = torch.tensor([-1.0, -1.0, -3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: kl_estimate(x, torch.zeros_like(x) - 1.5, mask, estimator), (clean,))


def test_a_reference_that_excludes_a_token_gives_a_finite_k3() -> None:
    policy = torch.tensor([-200.0, -1.0], requires_grad=True)
    value = kl_estimate(policy, torch.tensor([-1.0, -200.0]), torch.ones(2).bool(), "k3")
    value.sum().backward()
    assert policy.grad is not None
    assert value.isfinite().all()
    assert policy.grad.tolist() == [0.0, 0.0]


@needs_reference
@pytest.mark.parametrize("estimator", get_args(KlEstimator))
def test_peers_agree_with_value_and_gradient(estimator: KlEstimator) -> None:
    pair = inputs("02_kl_estimators", "pair")
    policy = matrix(pair["log_probs"]).requires_grad_()
    value = kl_estimate(policy, matrix(pair["ref_log_probs"]), torch.ones_like(policy).bool(), estimator)
    value.sum().backward()
    assert policy.grad is not None
    verl = case("02_kl_estimators", f"verl_{estimator}")
    part = CALM if estimator == "k3" else list(range(10))
    same(value.detach()[part], matrix(verl["kl"])[part].tolist())
    same(policy.grad[part], matrix(verl["grad_of_sum"])[part].tolist())
    slime = case("02_kl_estimators", f"slime_{estimator}")  # through float32
    same(value.detach()[part], matrix(slime["kl"])[part].tolist(), rtol=1e-5, atol=1e-6)


@needs_reference
def test_beyond_20_nats_k3_is_held_where_trl_goes_on() -> None:
    pair = inputs("02_kl_estimators", "pair")
    policy, reference = matrix(pair["log_probs"]), matrix(pair["ref_log_probs"])
    ours = kl_estimate(policy, reference, torch.ones_like(policy).bool(), "k3")
    trl = case("02_kl_estimators", "trl_k3")["kl"]
    same(ours[:8], trl[:8])  # up to 11 nats
    same(ours[8:], [math.exp(20) - 1 - 20, math.exp(-20) - 1 + 20])
    assert trl[8] == pytest.approx(math.exp(28) - 29)
    clamped = case("02_kl_estimators", "openrlhf_k3")["kl"]  # every estimate within +-10
    assert max(clamped) == 10.0


@needs_reference
def test_the_kl_to_the_engine_runs_from_the_engine() -> None:
    """prime-rl's mismatch KL is ours with the sampler first: the tokens are its samples."""
    expected = case("02_kl_estimators", "prime_mismatch_kl")
    trainer, engine = (matrix(expected["inputs"][f"{who}_logprobs"]) for who in ("trainer", "inference"))
    ours = kl_estimate(engine, trainer, torch.ones_like(engine).bool(), "k3")
    within = (engine - trainer).abs() < 20
    same(ours[within], matrix(expected["mismatch_kl"])[within].tolist())
