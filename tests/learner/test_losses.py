"""Losses by hand: what each does that the others do not."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from learner.advantages.extrapolated import extrapolated_advantage
from learner.advantages.overlong import overlong_penalty, shaped_reward
from learner.losses.band import band
from learner.losses.cispo import cispo
from learner.losses.dpo import dpo, response_gain
from learner.losses.gspo import gspo
from learner.losses.mirror_descent import mirror_descent
from learner.losses.nll import nll
from learner.losses.ppo_clip import ppo_clip
from learner.losses.value import value_loss


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def whole(count: int) -> Tensor:
    return torch.ones(count, dtype=torch.bool)


def gradient(loss: Tensor, of: Tensor) -> list[float]:
    return torch.autograd.grad(loss.sum(), of)[0].tolist()


def test_gspo_gives_each_token_the_ratio_of_its_sequence() -> None:
    new = tensor(-1.0, -1.2, -0.5).requires_grad_()
    old = tensor(-1.1, -1.2, -0.4)
    result = gspo(new, old, tensor(1.0, 1.0, -1.0), whole(3), torch.tensor([0, 0, 1]), clip_low=0.2, clip_high=0.28)
    ratios = [math.exp(0.05)] * 2 + [math.exp(-0.1)]
    assert result.ratio.tolist() == pytest.approx(ratios)
    assert result.loss.tolist() == pytest.approx([-ratios[0], -ratios[1], ratios[2]])
    assert gradient(result.loss, new) == pytest.approx([-ratios[0], -ratios[1], ratios[2]])


def test_gspo_clips_a_whole_sequence_or_none_of_it() -> None:
    """One token moved much: PPO would clip it alone, here it takes its sequence along."""
    new, old = tensor(-0.1, -1.0, -1.0, -1.0).requires_grad_(), tensor(-1.1, -1.0, -1.0, -1.0)
    result = gspo(new, old, tensor(1.0, 1.0, 1.0, 1.0), whole(4), torch.tensor([0, 0, 0, 1]))
    assert result.clipped_high.tolist() == [True, True, True, False]
    assert gradient(result.loss, new) == [0.0, 0.0, 0.0, -1.0]


def test_gspos_usual_range_is_a_thousandth_of_ppos() -> None:
    """Ratios e^-0.01 and e^0.01 of two sequences; flags where the advantage would drive them on."""
    old = torch.full((5,), -1.0, dtype=torch.float64)
    new, owners = old + tensor(-0.01, -0.01, 0.01, 0.01, math.nan), torch.tensor([0, 0, 1, 1, 1])
    mask = torch.tensor([True, True, True, True, False])
    result = gspo(new, old, tensor(-1.0, 1.0, -1.0, 1.0, 1.0), mask, owners)
    assert result.clipped_low.tolist() == [True, False, False, False, False]
    assert result.clipped_high.tolist() == [False, False, False, True, False]
    assert result.loss.tolist() == pytest.approx([1 - 3e-4, -math.exp(-0.01), math.exp(0.01), -1 - 4e-4, 0.0])
    assert result.ratio.tolist() == pytest.approx([math.exp(-0.01)] * 2 + [math.exp(0.01)] * 2 + [1.0])


def test_flags_are_of_kept_tokens_whose_gradient_or_weight_was_bounded() -> None:
    """Gaps of -1, 0, 1 under both signs and none, and once more masked."""
    gaps, signs = tensor(-1.0, 0.0, 1.0).repeat(6), tensor(1.0, -1.0, 0.0).repeat_interleave(3).repeat(2)
    mask, old = torch.arange(18) < 9, torch.full((18,), -2.0, dtype=torch.float64)
    owners, new = torch.arange(18), old + gaps
    below, above = gaps < 0, gaps > 0
    by_sign = [
        ppo_clip(new, old, signs, mask, clip_low=0.2, clip_high=0.2),
        gspo(new, old, signs, mask, owners, clip_low=0.2, clip_high=0.2),
    ]
    whatever = [
        cispo(new, old, signs, mask, clip_low=0.2, clip_high=0.2),
        band(new, old, signs, mask, alpha=-0.2, beta=0.2),
    ]
    for result in by_sign:
        assert torch.equal(result.clipped_high, mask & above & (signs > 0))
        assert torch.equal(result.clipped_low, mask & below & (signs < 0))
    for result in whatever:
        assert torch.equal(result.clipped_high, mask & above)
        assert torch.equal(result.clipped_low, mask & below)
    for result in by_sign + whatever:
        assert result.ratio[~mask].tolist() == [1.0] * 9
        assert result.loss[~mask].tolist() == [0.0] * 9


def test_cispo_bounds_the_weight_and_keeps_the_gradient() -> None:
    new, old = tensor(-0.1, -1.0).requires_grad_(), tensor(-2.1, -1.0)
    result = cispo(new, old, tensor(1.0, -2.0), whole(2), clip_low=0.2, clip_high=0.28)
    assert gradient(result.loss, new) == pytest.approx([-1.28, 2.0])
    assert result.clipped_high.tolist() == [True, False]


def test_mirror_descent_pulls_back_to_where_the_step_began() -> None:
    new, old = tensor(-1.0, -1.0, -1.0).requires_grad_(), tensor(-1.0, -3.0, -31.0)
    loss = mirror_descent(new, old, tensor(0.5, 0.5, 0.5), whole(3), tau=0.25)
    assert loss.tolist() == pytest.approx([0.0, -0.5 * 2 + 0.125 * 4, -0.5 * 30 + 0.125 * 900])
    assert gradient(loss, new) == pytest.approx([-0.5, -0.5 + 0.5, -0.5 + 7.5])
    assert gradient(mirror_descent(new, old, tensor(0.5, 0.5, 0.5), whole(3), tau=0.0), new) == [-0.5] * 3
    with pytest.raises(ValueError, match="negative"):
        mirror_descent(new, old, tensor(0, 0, 0), whole(3), tau=-1)


def test_a_band_stops_a_token_on_either_side_whatever_its_advantage() -> None:
    gaps = tensor(-1.0, 0.0, 1.0, -1.0, 1.0)
    old = tensor(-2.0, -2.0, -2.0, -2.0, -2.0)
    new = (old + gaps).requires_grad_()
    result = band(new, old, tensor(1.0, 1.0, 1.0, -1.0, -1.0), whole(5), alpha=-0.5, beta=0.7)
    assert gradient(result.loss, new) == [0.0, -1.0, 0.0, 0.0, 0.0]
    low, high = math.exp(-0.5), math.exp(0.7)
    assert result.loss.tolist() == pytest.approx([-low, -1.0, -high, low, high])
    assert result.clipped_low.tolist() == [True, False, False, True, False]
    assert result.clipped_high.tolist() == [False, False, True, False, True]
    within = band(new, old, tensor(3.0, 3.0, 3.0, 3.0, 3.0), whole(5), alpha=-2.0, beta=2.0)
    assert within.loss.tolist() == pytest.approx((-3 * gaps.exp()).tolist())
    for alpha, beta in ((0.1, 0.5), (-0.5, -0.1), (0.0, 0.5)):
        with pytest.raises(ValueError, match="must hold 0"):
            band(new, old, gaps, whole(5), alpha=alpha, beta=beta)


def test_a_value_that_moved_far_enough_moves_no_further() -> None:
    value, old = tensor(0.9, 0.1, -0.9).requires_grad_(), tensor(0.0, 0.0, 0.0)
    returns = tensor(1.0, 1.0, 1.0)
    result = value_loss(value, old, returns, whole(3), clip=0.5)
    assert result.loss.tolist() == pytest.approx([0.5 * 0.25, 0.5 * 0.81, 0.5 * 1.9**2])
    assert gradient(result.loss, value) == pytest.approx([0.0, -0.9, -1.9])  # one that went the wrong way comes back
    assert result.clipped.tolist() == [True, False, False]
    assert gradient(value_loss(value, old, returns, whole(3), clip=None).loss, value) == pytest.approx(
        [-0.1, -0.9, -1.9]
    )
    with pytest.raises(ValueError, match="positive"):
        value_loss(value, old, returns, whole(3), clip=0.0)


def test_likelihood_with_and_without_weights() -> None:
    new = tensor(-1.0, -2.0, math.nan).requires_grad_()
    mask = torch.tensor([True, True, False])
    assert nll(new, mask).tolist() == [1.0, 2.0, 0.0]
    weighed = nll(new, mask, tensor(0.5, -1.0, math.nan))
    assert weighed.tolist() == [0.5, -2.0, 0.0]
    assert gradient(weighed, new) == [-0.5, 1.0, 0.0]


def test_pairs_by_hand() -> None:
    """Two pairs of responses 0 > 1 and 2 > 3; the last has no kept token."""
    new = tensor(-1.0, -1.0, -3.0, -0.5, -7.0).requires_grad_()
    reference = tensor(-1.5, -1.25, -2.0, -0.5, math.nan)
    mask = torch.tensor([True, True, True, True, False])
    gains = response_gain(new, reference, mask, torch.tensor([0, 0, 1, 2, 3]), 4)
    assert gains.tolist() == [0.75, -1.0, 0.0, 0.0]
    result = dpo(gains[[0, 2]], gains[[1, 3]], beta=2.0)
    assert result.margin.tolist() == [3.5, 0.0]
    assert result.loss.tolist() == pytest.approx([math.log1p(math.exp(-3.5)), math.log(2)])
    assert dpo(gains[[0, 2]], gains[[1, 3]]).margin.tolist() == pytest.approx([0.175, 0.0])
    assert not result.margin.requires_grad
    push = 2.0 / (1 + math.exp(3.5))
    assert gradient(result.loss, new) == pytest.approx([-push, -push, push, -1.0, 0.0])
    with pytest.raises(ValueError, match="positive"):
        dpo(gains, gains, beta=0.0)


def test_extrapolation_by_hand() -> None:
    teacher, reference, behaviour = tensor(-1.0, -2.0), tensor(-2.0, -2.0), tensor(-1.5, -1.0)
    advantage, mask = extrapolated_advantage(teacher, reference, behaviour, scale=2.0)
    assert advantage.tolist() == [2.0 - 0.5, 0.0 - 1.0]
    assert mask.all()
    plain, _ = extrapolated_advantage(teacher, reference, behaviour, scale=1.0)
    assert plain.tolist() == (teacher - behaviour).tolist()


def test_extrapolation_needs_its_reference_and_equal_lengths() -> None:
    none, mask = extrapolated_advantage(None, None, tensor(-1.0))
    assert (none.tolist(), mask.tolist()) == ([0.0], [False])
    with pytest.raises(ValueError, match="extrapolates"):
        extrapolated_advantage(tensor(-1.0), None, tensor(-1.0))
    with pytest.raises(ValueError, match="2 reference log-probs for 1"):
        extrapolated_advantage(tensor(-1.0), tensor(-1.0, -1.0), tensor(-1.0))
    with pytest.raises(ValueError, match="2 teacher log-probs for 1"):
        extrapolated_advantage(tensor(-1.0, -1.0), tensor(-1.0), tensor(-1.0))


def test_the_overlong_slope() -> None:
    lengths = [0, 80, 85, 100, 10_000]
    assert [overlong_penalty(n, limit=100, buffer=20, factor=2.0) for n in lengths] == [0.0, 0.0, -0.5, -2.0, -2.0]
    assert shaped_reward(1.0, 90, limit=100, buffer=20) == 0.5
    assert shaped_reward(None, 90, limit=100, buffer=20) is None
    for buffer in (0, 101):
        with pytest.raises(ValueError, match="within"):
            overlong_penalty(5, limit=100, buffer=buffer)
