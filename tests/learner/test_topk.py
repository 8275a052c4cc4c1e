"""Distillation over k entries: advantage, surrogate and divergences, by hand and in their properties."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from learner.advantages.topk import scores_at, topk_advantage
from learner.losses.topk_divergence import topk_divergence
from learner.losses.topk_surrogate import topk_surrogate


def logs(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def test_an_advantage_by_hand() -> None:
    behaviour, teacher = logs([0.4, 0.1]), logs([0.2, 0.7])
    advantage, mask = topk_advantage(teacher, behaviour, clip=1.0)
    assert advantage[0].tolist() == pytest.approx([math.log(0.5) * 0.8, 1.0 * 0.2])  # log 7 is clipped to 1
    assert mask.all()


def test_an_unknown_score_is_masked_and_an_impossible_entry_is_a_score() -> None:
    behaviour = logs([0.4, 0.1, 0.3])
    teacher = torch.tensor([[math.nan, -math.inf, math.log(0.3)]], dtype=torch.float64)
    advantage, mask = topk_advantage(teacher, behaviour)
    assert mask.tolist() == [[False, True, True]]
    assert advantage[0].tolist() == pytest.approx([0.0, -1.0 * 0.125, 0.0])


def test_an_entry_that_the_student_did_not_score_has_no_share() -> None:
    for unknown in (math.nan, -math.inf):
        behaviour = torch.tensor([[unknown, math.log(0.3), math.log(0.1)]], dtype=torch.float64)
        advantage, mask = topk_advantage(logs([0.5, 0.6, 0.1]), behaviour)
        assert mask.tolist() == [[False, True, True]]
        assert advantage[0].tolist() == pytest.approx([0.0, math.log(2) * 0.75, 0.0])


def test_without_a_teacher_there_is_no_credit() -> None:
    advantage, mask = topk_advantage(None, logs([0.4, 0.1]))
    assert advantage.tolist() == [[0.0, 0.0]]
    assert not mask.any()


def test_shapes_and_clips_are_checked() -> None:
    with pytest.raises(ValueError, match=r"\(1, 3\) for student entries \(1, 2\)"):
        topk_advantage(torch.zeros(1, 3), torch.zeros(1, 2))
    with pytest.raises(ValueError, match="must be positive"):
        topk_advantage(None, torch.zeros(1, 2), clip=0.0)


def test_scores_are_found_by_id_and_never_made_up() -> None:
    ids, scores = torch.tensor([[7, 3], [1, 2]]), torch.tensor([[-0.5, -math.inf], [-1.0, -2.0]])
    wanted = torch.tensor([[3, 4, 7], [2, 2, 9]])
    found = scores_at(ids, scores, wanted)
    expected = torch.tensor([[-math.inf, math.nan, -0.5], [-2.0, -2.0, math.nan]])
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_the_surrogate_sums_over_entries_and_clips_each() -> None:
    old, new = logs([0.4, 0.1]), logs([0.4, 0.2])
    advantage, mask = torch.tensor([[0.5, 0.3]], dtype=torch.float64), torch.ones(1, 2).bool()
    result = topk_surrogate(new, old, advantage, mask, clip_low=0.2, clip_high=0.28)
    assert result.loss.tolist() == pytest.approx([-0.5 - 1.28 * 0.3])
    assert result.clipped_high.tolist() == [[False, True]]
    masked = topk_surrogate(new, old, advantage, torch.tensor([[True, False]]), clip_low=0.2, clip_high=0.28)
    assert masked.loss.tolist() == pytest.approx([-0.5])


def test_the_surrogates_gradient_is_that_of_the_expected_distillation() -> None:
    """Over the whole vocabulary and without clips, at the first step: minus the gradient of the reverse KL."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(3, 6, generator=generator, dtype=torch.float64).log_softmax(-1)
    student = logits.log_softmax(-1)
    advantage, mask = topk_advantage(teacher, student.detach(), clip=100.0)
    loss = topk_surrogate(student, student.detach(), advantage, mask, clip_low=0.2, clip_high=0.2).loss.sum()
    (ours,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (exact,) = torch.autograd.grad(topk_divergence(student, teacher, mask, alpha=1.0, tail=False).sum(), logits)
    torch.testing.assert_close(ours, exact)


def test_divergences_by_hand() -> None:
    student, teacher, mask = logs([0.5, 0.2]), logs([0.25, 0.25]), torch.ones(1, 2).bool()
    s, t = [0.5, 0.2, 0.3], [0.25, 0.25, 0.5]

    def kl(left: list[float], right: list[float]) -> float:
        return sum(x * math.log(x / y) for x, y in zip(left, right, strict=True))

    mixture = [0.7 * x + 0.3 * y for x, y in zip(s, t, strict=True)]
    for alpha, expected in ((0.0, kl(t, s)), (1.0, kl(s, t)), (0.3, 0.7 * kl(s, mixture) + 0.3 * kl(t, mixture))):
        assert topk_divergence(student, teacher, mask, alpha=alpha).tolist() == pytest.approx([expected])
    renormalised = kl([0.5 / 0.7, 0.2 / 0.7], [0.5, 0.5])
    assert topk_divergence(student, teacher, mask, alpha=1.0, tail=False).tolist() == pytest.approx([renormalised])
    with pytest.raises(ValueError, match="from 0 to 1"):
        topk_divergence(student, teacher, mask, alpha=1.5)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("tail", [True, False])
def test_a_divergence_is_never_negative_and_0_for_equals(alpha: float, tail: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    full = torch.randn(2, 200, 12, generator=generator, dtype=torch.float64).mul(3).log_softmax(-1)
    student, teacher = full[..., :5]
    mask = torch.rand(200, 5, generator=generator) > 0.2
    assert (topk_divergence(student, teacher, mask, alpha=alpha, tail=tail) > -1e-12).all()
    assert topk_divergence(student, student, mask, alpha=alpha, tail=tail).abs().max() < 1e-12


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_more_entries_bring_it_nearer_to_the_whole(alpha: float) -> None:
    generator = torch.Generator().manual_seed(3)
    student, teacher = torch.randn(2, 50, 12, generator=generator, dtype=torch.float64).log_softmax(-1)
    everything = torch.ones(50, 12).bool()
    whole = topk_divergence(student, teacher, everything, alpha=alpha, tail=False)
    before = torch.zeros(50, dtype=torch.float64)
    for k in (1, 4, 8, 11):
        part = topk_divergence(student[:, :k], teacher[:, :k], everything[:, :k], alpha=alpha)
        assert (part >= before - 1e-9).all()
        assert (part <= whole + 1e-9).all()
        before = part


def test_an_entry_that_is_left_out_is_in_the_tail() -> None:
    student, teacher = logs([0.5, 0.2]), logs([0.25, 0.25])
    left_out = topk_divergence(student, teacher, torch.tensor([[True, False]]), alpha=1.0)
    short = topk_divergence(student[:, :1], teacher[:, :1], torch.ones(1, 1).bool(), alpha=1.0)
    assert left_out.tolist() == short.tolist()
    for nothing in (math.nan, -math.inf, -9999.0):
        teacher = torch.tensor([[math.log(0.25), nothing]], dtype=torch.float64)
        assert topk_divergence(student, teacher, torch.ones(1, 2).bool(), alpha=1.0).tolist() == short.tolist()


def test_a_student_that_is_not_a_number_is_not_hidden_in_the_tail() -> None:
    student = torch.tensor([[math.nan, -1.0]])
    assert topk_divergence(student, torch.tensor([[-1.0, -1.0]]), torch.ones(1, 2).bool(), alpha=1.0).isnan().all()
