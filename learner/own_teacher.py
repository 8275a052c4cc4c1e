"""What a teacher inside the learner says of a micro-batch: the original response ids scored after the hinted prompt.

No server is asked and no token is made: the teacher reads exactly the ids that the student sampled, in the place where
the hint is in its prompt (SDPO, arXiv 2601.20802, section 3).

Shapes: N response tokens of the micro-batch, K vocabulary entries a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from learner.collate import plan_forwards
from learner.companions import Companion
from learner.logprobs import response_scores
from learner.ranks import filled, share
from learner.samples import TrainingSample


@dataclass(frozen=True, eq=False)
class OwnTaught:
    """All on the CPU. `mask` bool [N]: tokens of samples that have a hint and are asked for. Elsewhere `chosen` float32
    [N] and `logprobs` float32 [N, K] are NaN, since 0 would be a probability of 1, and `ids` int64 [N, K] are 0."""

    mask: Tensor
    chosen: Tensor
    ids: Tensor | None = None
    logprobs: Tensor | None = None


@torch.no_grad()
def teach(
    teacher: Companion,
    samples: Sequence[TrainingSample],
    tokens_per_forward: int,
    *,
    asked: Sequence[bool] | None = None,
    at_ids_NK: Tensor | None = None,
    top_k: int | None = None,
) -> OwnTaught:
    """The teacher's log-probs of the sampled tokens and, where `at_ids_NK` int64 [N, K] is given, at those entries (the
    student's likeliest); where `top_k` is, at the teacher's own likeliest.

    `asked`: samples that are to be scored; by default all that have `hinted_prompt_ids`.

    Raises:
        ValueError: both `at_ids_NK` and `top_k` are given.
    """
    if at_ids_NK is not None and top_k is not None:
        raise ValueError("the teacher scores either the ids that are asked for or its own likeliest, not both")
    lengths = [len(sample.response_ids) for sample in samples]
    use = [
        sample.hinted_prompt_ids is not None and (asked is None or asked[place]) for place, sample in enumerate(samples)
    ]
    total, entries = sum(lengths), top_k if at_ids_NK is None else at_ids_NK.shape[1]
    mask_N = torch.repeat_interleave(torch.tensor(use, dtype=torch.bool), torch.tensor(lengths))
    chosen_N = torch.full((total,), torch.nan)
    ids_NK = logprobs_NK = None
    if entries is not None:
        ids_NK = torch.zeros(total, entries, dtype=torch.long)
        logprobs_NK = torch.full((total, entries), torch.nan)
    hinted = [
        sample if sample.hinted_prompt_ids is None else replace(sample, prompt_ids=sample.hinted_prompt_ids)
        for sample in samples
    ]
    forwards = share(plan_forwards(hinted, tokens_per_forward, use))
    with teacher.model() as model:
        for forward in forwards:
            part = forward.flat
            at = None if at_ids_NK is None else at_ids_NK[part]
            scores = response_scores(model, forward, at_ids_NK=at, top_k=top_k)
            chosen_N[part] = scores.chosen.float().cpu()
            ids, logprobs = (at, scores.at_ids) if at is not None else (scores.top_ids, scores.top_logprobs)
            if ids_NK is not None and logprobs_NK is not None and ids is not None and logprobs is not None:
                ids_NK[part], logprobs_NK[part] = ids.cpu(), logprobs.float().cpu()
    if forwards:
        chosen_N = filled(chosen_N, forwards)
        if ids_NK is not None and logprobs_NK is not None:
            ids_NK, logprobs_NK = filled(ids_NK, forwards), filled(logprobs_NK, forwards)
    return OwnTaught(mask_N, chosen_N, ids_NK, logprobs_NK)
