"""The learner's benchmark: its batch is what it says, and its contenders learn the same thing from it."""

from __future__ import annotations

import pytest
import torch

from benchmarks import learner_contender
from benchmarks.learner_batch import SIZES, make_model, make_samples
from learner import logprobs, step
from learner.samples import TrainingSample

SIZE = SIZES["tiny"]


def batch() -> list[TrainingSample]:
    return make_samples(SIZE, 512)


@pytest.mark.parametrize("name", list(SIZES))
def test_a_batch_has_as_many_tokens_as_it_says(name: str) -> None:
    size = SIZES[name]
    samples = make_samples(size, 512)
    lengths = [len(s.prompt_ids) + len(s.response_ids) for s in samples]
    assert (len(samples), sum(lengths)) == (size.samples, size.tokens)
    assert len(set(lengths)) > 2
    for sample in samples:
        sample.check()
        assert len(sample.prompt_ids) < len(sample.response_ids)


def test_whole_logits_give_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared in memory does the same work."""
    tiled, whole = make_model(None, "tiny"), make_model(None, "tiny")
    learner_contender.ours(tiled, SIZE, batch())()
    for module in (step, logprobs):
        monkeypatch.setattr(module, "response_scores", module.response_scores)  # undone afterwards
    learner_contender.full_logits(whole, SIZE, batch())()
    for one, other in zip(tiled.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_the_limit_learns_from_every_response_token() -> None:
    model = make_model(None, "tiny")
    take = learner_contender.limit(model, SIZE, batch())
    before = [parameter.detach().clone() for parameter in model.parameters()]
    take()
    moved = [bool((one != two).any()) for one, two in zip(before, model.parameters(), strict=True)]
    assert sum(moved) > len(moved) / 2


def test_operations_are_counted_by_hand() -> None:
    """Two layers of width 32 with 4 + 2 + 2 heads of 8 and an inner width of 64; the head at response tokens only."""
    model, samples = make_model(None, "tiny"), batch()
    layer = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 64 + 2 * 32 + 2 * 8
    body, head = 2 * layer + 32, 512 * 32
    lengths = [len(s.prompt_ids) + len(s.response_ids) for s in samples]
    targets = sum(len(s.response_ids) for s in samples)
    attention = sum(6 * 2 * 32 * length**2 for length in lengths)
    assert learner_contender.flops_of(model, samples) == 6 * (body * sum(lengths) + head * targets) + attention
