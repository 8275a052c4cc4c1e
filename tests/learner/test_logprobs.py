"""Log-probs and entropy: the shift by one, closed-form gradients, chunks, and peers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from largest import Largest
from tiny import make_sample, tiny_model
from torch import Tensor
from vectors import case, flat, inputs, matrix, needs_reference, same

from learner.collate import plan_forwards
from learner.logprobs import Scores, Tile, response_log_probs, token_log_probs, token_scores
from learner.samples import TrainingSample


def from_logits(logits: Tensor, targets: list[int]) -> tuple[Tensor, Tensor]:
    """With an identity head, hidden states are logits."""
    return token_log_probs(logits, torch.eye(logits.shape[-1], dtype=logits.dtype), torch.tensor(targets), (2, 3))


def test_two_answer_ids_after_three_prompt_ids_are_read_at_positions_2_and_3() -> None:
    sample = TrainingSample(
        sample_id="s",
        prompt_ids=np.array([4, 1, 6], np.int32),
        response_ids=np.array([2, 5], np.int32),
        response_logprobs=np.array([-1, -1], np.float32),
    )
    (forward,) = plan_forwards([sample], 100)
    assert forward.positions.tolist() == [2, 3]
    assert forward.targets.tolist() == [2, 5]
    model = tiny_model()
    ours, _ = response_log_probs(model, forward)
    logits = model(torch.tensor([[4, 1, 6, 2, 5]])).logits[0]
    expected = torch.log_softmax(logits, -1)[[2, 3], [2, 5]]
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


def test_company_in_a_row_changes_nothing() -> None:
    model = tiny_model()
    samples = [make_sample(seed, prompt=2 + seed, response=9 - seed) for seed in range(6)]
    alone = [response_log_probs(model, plan_forwards([sample], 1)[0]) for sample in samples]
    together = torch.zeros(sum(len(s.response_ids) for s in samples))
    for forward in plan_forwards(samples, 30):
        together[forward.flat] = response_log_probs(model, forward)[0].detach()
    torch.testing.assert_close(together, torch.cat([one[0] for one in alone]).detach(), rtol=1e-5, atol=1e-6)


TILES = [(1, 1), (2, 3), (5, 4), (100, 100)]


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_gradients_are_those_of_finite_differences(tile: Tile, temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(5, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(7, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    targets = torch.tensor([0, 6, 2, 2, 5])
    ids = torch.tensor([[1, 6], [6, 6], [0, 3], [2, 4], [5, 0]])  # the target itself among them, and one id twice

    def scores(hidden: Tensor, weight: Tensor) -> Scores:
        return token_scores(hidden, weight, targets, at_ids_NK=ids, temperature=temperature, tile=tile)

    def all_three(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        result = scores(hidden, weight)
        assert result.at_ids is not None
        return result.chosen, result.entropy, result.at_ids

    assert torch.autograd.gradcheck(all_three, (hidden, weight))
    assert torch.autograd.gradcheck(lambda h, w: scores(h, w).chosen, (hidden, weight))
    assert torch.autograd.gradcheck(lambda h, w: scores(h, w).entropy, (hidden, weight))


@pytest.mark.parametrize("tile", TILES)
def test_scores_are_those_of_whole_logits(tile: Tile) -> None:
    hidden = torch.randn(10, 8, generator=torch.Generator().manual_seed(1))
    weight = torch.randn(20, 8, generator=torch.Generator().manual_seed(2)) * 3
    targets, ids = torch.arange(10), torch.arange(30).view(10, 3) % 20
    temperature = torch.linspace(0.5, 2.0, 10)
    whole = torch.log_softmax((hidden @ weight.T) / temperature[:, None], -1)
    scores = token_scores(hidden, weight, targets, at_ids_NK=ids, top_k=6, temperature=temperature, tile=tile)
    torch.testing.assert_close(scores.chosen, whole.gather(-1, targets[:, None])[:, 0], rtol=1e-5, atol=1e-5)
    # A difference of sums near the largest logit, here 60, whose float32 resolution is 4e-6.
    torch.testing.assert_close(scores.entropy, -(whole.exp() * whole).sum(-1), rtol=1e-5, atol=5e-5)
    torch.testing.assert_close(scores.at_ids, whole.gather(-1, ids), rtol=1e-5, atol=1e-5)
    expected = whole.topk(6, dim=-1)
    torch.testing.assert_close(scores.top_logprobs, expected.values, rtol=1e-5, atol=1e-5)
    assert torch.equal(scores.top_ids, expected.indices)


def test_what_was_not_asked_for_is_absent_and_top_k_ends_at_the_vocabulary() -> None:
    hidden, weight, targets = torch.randn(2, 4), torch.randn(5, 4), torch.tensor([1, 4])
    plain = token_scores(hidden, weight, targets)
    assert (plain.at_ids, plain.top_ids, plain.top_logprobs) == (None, None, None)
    every = token_scores(hidden, weight, targets, top_k=100, tile=(2, 2))
    assert every.top_ids is not None
    assert [sorted(row) for row in every.top_ids.tolist()] == [[0, 1, 2, 3, 4]] * 2
    assert every.top_logprobs is not None
    torch.testing.assert_close(every.top_logprobs.exp().sum(-1), torch.ones(2))
    assert not every.top_logprobs.requires_grad


def test_the_size_of_tiles_changes_no_gradient() -> None:
    hidden = torch.randn(10, 8, generator=torch.Generator().manual_seed(1), requires_grad=True)
    weight = torch.randn(20, 8, generator=torch.Generator().manual_seed(2), requires_grad=True)
    results = []
    for tile in TILES:
        chosen, entropy = token_log_probs(hidden, weight, torch.arange(10), tile)
        gradients = torch.autograd.grad(chosen.sum() + entropy.square().sum(), (hidden, weight))
        results.append((chosen, entropy, *gradients))
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


def test_a_head_that_does_not_learn_costs_no_gradient() -> None:
    """As under adapters; the hidden states get the same gradient."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(6, 8, requires_grad=True), torch.randn(5000, 8)
    (expected,) = torch.autograd.grad(
        token_log_probs(hidden, weight.requires_grad_(), torch.arange(6))[0].sum(), hidden
    )
    chosen, _ = token_log_probs(hidden, weight.detach(), torch.arange(6), (6, 50))
    with Largest() as largest:
        chosen.sum().backward()
    assert hidden.grad is not None
    torch.testing.assert_close(hidden.grad, expected, rtol=1e-5, atol=1e-5)
    assert largest.numel <= 6 * 50 + 50 * 8


def test_no_tensor_grows_with_tokens_times_vocabulary() -> None:
    """The largest is the head's gradient, or the hidden states, or a tile, whatever is asked for."""
    for tokens, vocabulary in ((64, 500), (128, 1000), (512, 4000)):
        hidden = torch.randn(tokens, 8, requires_grad=True)
        weight = torch.randn(vocabulary, 8, requires_grad=True)
        targets = torch.arange(tokens) % vocabulary
        with Largest() as largest:
            scores = token_scores(hidden, weight, targets, at_ids_NK=targets[:, None], top_k=4, tile=(16, 32))
            assert scores.at_ids is not None
            (scores.chosen + scores.entropy + scores.at_ids[:, 0]).sum().backward()
        assert largest.numel <= max(16 * 32, 8 * vocabulary, 8 * tokens)


def test_bfloat16_products_still_give_a_float32_softmax() -> None:
    hidden, weight = torch.randn(4, 8).bfloat16().requires_grad_(), torch.randn(9, 8).bfloat16().requires_grad_()
    chosen, entropy = token_log_probs(hidden, weight, torch.arange(4), (2, 4))
    assert (chosen.dtype, entropy.dtype) == (torch.float32, torch.float32)
    chosen.sum().backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    assert (hidden.grad.dtype, weight.grad.dtype) == (torch.bfloat16, torch.bfloat16)


def test_an_impossible_token_has_no_entropy_and_breaks_nothing() -> None:
    """The peers' forms give NaN here: 0 x -inf."""
    logits = torch.tensor([[1.0, 2.0, -math.inf, 0.0]], dtype=torch.float64)
    possible = torch.softmax(logits[0, [0, 1, 3]], -1)
    chosen, entropy = from_logits(torch.where(logits.isinf(), -1e300, logits), [1])
    assert float(entropy) == pytest.approx(float(-(possible * possible.log()).sum()))
    assert float(chosen) == pytest.approx(float(possible[1].log()))


@needs_reference
def test_peers_agree_on_log_probs_and_entropy() -> None:
    one = inputs("10_logprob_entropy", "one")
    logits, ids = matrix(one["logits"]), [*one["prompt_ids"], *one["answer_ids"]]
    chosen, entropy = from_logits(logits[2:4], one["answer_ids"])
    verl = case("10_logprob_entropy", "verl_logprobs_naive")
    same(chosen, verl["answer"])
    same(entropy, case("10_logprob_entropy", "verl_entropy")["answer"])
    trl = case("10_logprob_entropy", "trl_forward_temp1")
    same(chosen, trl["answer_log_probs"])
    same(entropy, trl["answer_entropy"])
    everywhere, _ = from_logits(logits[:-1], ids[1:])
    same(everywhere, verl["all"])
    same(everywhere, case("10_logprob_entropy", "openrlhf_logprobs")["all"])
    prime = case("10_logprob_entropy", "prime_full_layout")
    same(chosen, prime["log_probs_shifted_right"][3:])
    same(entropy, prime["entropy_shifted_right"][3:])


@needs_reference
def test_peers_agree_on_packed_sequences() -> None:
    packed = inputs("10_logprob_entropy", "packed")
    logits = matrix(packed["packed_logits_float32"]).float()
    rows, targets, start = [], [], 0
    for tokens, total, response in zip(
        packed["tokens"], packed["total_lengths"], packed["response_lengths"], strict=True
    ):
        rows += range(start + total - response - 1, start + total - 1)
        targets += tokens[total - response :]
        start += total
    chosen, entropy = from_logits(logits[rows], targets)
    for title in ("slime_packed_temp1", "openclaw_packed"):
        expected = case("10_logprob_entropy", title)
        same(chosen, flat(expected["log_probs"]).tolist(), rtol=1e-5, atol=1e-6)
        same(entropy, flat(expected["entropy"]).tolist(), rtol=1e-5, atol=1e-6)


@needs_reference
def test_entropy_at_the_extremes() -> None:
    for title, where in (("entropy_peaked", [[60.0, *[0.0] * 6]]), ("entropy_uniform", [[0.0] * 7])):
        _, entropy = from_logits(matrix(where), [0])
        same(entropy, case("10_logprob_entropy", title)["trl"], atol=1e-12)
