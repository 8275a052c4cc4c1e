"""A teacher inside the learner scores the sampled ids under the hint, at the entries asked for, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import make_sample, same_weights, tiny_model, weights

from learner.companions import FrozenModel, Lent, Reference
from learner.optimizer import MasterAdamW
from learner.own_teacher import teach
from learner.samples import TrainingSample

TEACHER = tiny_model(seed=5)
HINTED = np.array([7, 8, 9, 10, 11, 12, 13], np.int32)


def samples() -> list[TrainingSample]:
    """The first and the last with a hint."""
    return [
        replace(make_sample(1, prompt=3, response=4), hinted_prompt_ids=HINTED),
        make_sample(2, prompt=6, response=3),
        replace(make_sample(3, prompt=2, response=5), hinted_prompt_ids=HINTED[:5]),
    ]


def by_hand(sample: TrainingSample, model: Any = TEACHER) -> torch.Tensor:
    """Log-probs [R, V] of whole logits."""
    assert sample.hinted_prompt_ids is not None
    ids = torch.tensor([*sample.hinted_prompt_ids.tolist(), *sample.response_ids.tolist()])
    with torch.no_grad():
        logits = model(ids[None]).logits[0]
    return torch.log_softmax(logits, -1)[len(sample.hinted_prompt_ids) - 1 : -1]


@pytest.mark.parametrize("budget", [1, 1000])
def test_the_sampled_ids_are_scored_after_the_hinted_prompt_from_the_first_token_on(budget: int) -> None:
    batch = samples()
    taught = teach(FrozenModel(TEACHER), batch, budget)
    assert taught.mask.tolist() == [True] * 4 + [False] * 3 + [True] * 5
    for sample, part in ((batch[0], slice(0, 4)), (batch[2], slice(7, 12))):
        ids = torch.from_numpy(sample.response_ids.astype(np.int64))
        expected = by_hand(sample).gather(-1, ids[:, None])[:, 0]
        torch.testing.assert_close(taught.chosen[part], expected, rtol=0, atol=1e-5)
    assert torch.isnan(taught.chosen[4:7]).all()
    assert taught.ids is None


def test_the_students_entries_are_scored_by_the_teacher() -> None:
    batch = samples()
    at_ids_NK = torch.randint(0, 61, (12, 6), generator=torch.Generator().manual_seed(0))
    taught = teach(FrozenModel(TEACHER), batch, 1000, at_ids_NK=at_ids_NK)
    assert taught.logprobs is not None
    torch.testing.assert_close(taught.logprobs[7:12], by_hand(batch[2]).gather(-1, at_ids_NK[7:12]), rtol=0, atol=1e-5)
    assert torch.isnan(taught.logprobs[4:7]).all()


def test_or_the_teachers_own_likeliest() -> None:
    batch = samples()
    taught = teach(FrozenModel(TEACHER), batch, 1000, top_k=4)
    assert taught.ids is not None
    assert taught.logprobs is not None
    expected = by_hand(batch[0]).topk(4)
    assert torch.equal(taught.ids[:4], expected.indices)
    torch.testing.assert_close(taught.logprobs[:4], expected.values, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="not both"):
        teach(FrozenModel(TEACHER), batch, 1000, top_k=4, at_ids_NK=taught.ids)


def test_what_is_not_asked_for_is_not_scored_and_a_batch_without_hints_is_no_pass() -> None:
    batch = samples()
    taught = teach(FrozenModel(TEACHER), batch, 1000, asked=[False, True, True])
    assert taught.mask.tolist() == [False] * 7 + [True] * 5
    assert torch.isnan(taught.chosen[:7]).all()
    nothing = teach(FrozenModel(TEACHER), [batch[1]], 1000, top_k=4)
    assert not nothing.mask.any()


def test_a_lent_teacher_scores_with_its_weights_and_gives_the_policy_back() -> None:
    model = tiny_model(seed=5)
    optimizer = MasterAdamW(model, lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    teacher = Reference(Lent(model, optimizer))
    for master in optimizer.masters:
        master += 0.1
    optimizer._copy_to_model()
    moved = weights(model)
    taught = teach(teacher, samples(), 1000)
    assert torch.equal(taught.chosen[taught.mask], teach(FrozenModel(TEACHER), samples(), 1000).chosen[taught.mask])
    assert same_weights(weights(model), moved)
