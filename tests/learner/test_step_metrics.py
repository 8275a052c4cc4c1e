"""What every step logs: the right numbers, and absent rather than NaN."""

from __future__ import annotations

import json
import math

import pytest
import torch
from tiny import make_sample, mixed_samples, on_policy, tiny_model

from learner.metrics import finite, log_prob_metrics
from learner.objective import StepOptions
from learner.step import PolicyTrainer

OPTIONS = StepOptions(lr=1e-3, tokens_per_forward=25)


def test_every_step_logs_what_the_design_asks() -> None:
    metrics = PolicyTrainer(tiny_model(), OPTIONS).train(mixed_samples()).metrics
    asked = {
        "ratio_p01", "ratio_p50", "ratio_p99", "ratio_max", "clip_fraction_low", "clip_fraction_high",
        "logprob_gap_mean", "logprob_gap_max", "kl_k1", "kl_k3", "entropy", "rl_advantage_mean", "rl_advantage_std",
        "opd_advantage_mean", "opd_advantage_std", "rl_advantage_p05", "rl_advantage_p95",
        "rl_tokens", "opd_tokens", "tokens", "gradient_norm", "loss",
        "rl_loss", "opd_loss",
    }  # fmt: skip
    assert asked <= metrics.keys()
    assert all(value is not None and math.isfinite(value) for value in metrics.values())
    json.dumps(metrics, allow_nan=False)
    assert (metrics["tokens"], metrics["rl_tokens"], metrics["opd_tokens"]) == (21, 10, 13)
    assert metrics["rl_advantage_mean"] == pytest.approx((7 - 2 - 1) / 10)
    assert (metrics["rl_advantage_p05"], metrics["rl_advantage_p50"], metrics["rl_advantage_p95"]) == (-1, 1, 1)


def test_on_policy_and_without_mismatch_nothing_differs() -> None:
    model = tiny_model()
    samples = [on_policy(model, make_sample(seed)) for seed in range(3)]
    metrics = PolicyTrainer(model, OPTIONS).train(samples).metrics
    for name in ("ratio_p01", "ratio_p50", "ratio_p99", "ratio_max"):
        assert metrics[name] == pytest.approx(1.0, abs=1e-5)
    for name in ("logprob_gap_max", "kl_k1", "kl_k3", "clip_fraction_low", "clip_fraction_high"):
        assert metrics[name] == pytest.approx(0.0, abs=1e-5)
    assert metrics["entropy"] is not None
    assert 0 < metrics["entropy"] < math.log(61)


def test_by_hand_with_the_kl_from_the_behaviour_which_sampled() -> None:
    new, old = torch.tensor([-1.0, -2.0, math.nan]), torch.tensor([-1.5, -1.0, -1.0])
    kept = torch.tensor([True, True, False])
    metrics = log_prob_metrics(new, old, torch.tensor([0.5, 1.5, math.nan]), kept)
    assert metrics["ratio_max"] == pytest.approx(math.exp(0.5))
    assert metrics["logprob_gap_mean"] == pytest.approx(0.75)
    assert metrics["logprob_gap_max"] == pytest.approx(1.0)
    assert metrics["kl_k1"] == pytest.approx(0.25)  # mean of old - new
    assert metrics["kl_k3"] == pytest.approx((math.exp(0.5) - 1.5 + math.exp(-1)) / 2)
    assert metrics["entropy"] == pytest.approx(1.0)


def test_what_cannot_be_said_is_absent() -> None:
    assert [finite(value) for value in (math.nan, math.inf, -math.inf, 1.5)] == [None, None, None, 1.5]
    metrics = PolicyTrainer(tiny_model(), OPTIONS).train([make_sample(1, reward=0.0)]).metrics
    assert metrics["rl_advantage_mean"] is None
    assert metrics["opd_advantage_std"] is None
    assert metrics["tokens"] == 0
    binary = PolicyTrainer(tiny_model(), OPTIONS).train([make_sample(1)]).metrics
    assert binary["opd_tokens"] == 0
    assert binary["opd_advantage_mean"] is None
