"""How samples are put together for a forward pass.

Shapes: B samples, T tokens (padded), N response tokens of all samples in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from learner.samples import TrainingSample


@dataclass(frozen=True, eq=False)
class Forward:
    """One forward pass: some samples, right-padded.

    `input_ids` int64 [B, T]. `positions` int64 [N, 2]: (row, column) of the hidden state that predicts each response
    token, so column prompt_length - 1 for the first. `targets` int64 [N]. `flat` int64 [N]: place of each token among
    all response tokens of the micro-batch, samples in order.
    """

    input_ids: Tensor
    positions: Tensor
    targets: Tensor
    flat: Tensor


def plan_forwards(
    samples: Sequence[TrainingSample], tokens_per_forward: int, carried: Sequence[bool] | None = None
) -> list[Forward]:
    """Group samples of like length, so that padding is short, into passes of at most `tokens_per_forward` padded
    tokens (one sample at least). Causal attention never looks to the right, so right padding needs no mask.

    A sample whose `carried` is False is in no pass: no loss would read its log-probs.

    Raises:
        ValueError: `tokens_per_forward` is below 1.
    """
    if tokens_per_forward < 1:
        raise ValueError(f"tokens_per_forward must be at least 1, not {tokens_per_forward}")
    lengths = [len(s.prompt_ids) + len(s.response_ids) for s in samples]
    places = [place for place in range(len(samples)) if carried is None or carried[place]]
    order = sorted(places, key=lambda place: (-lengths[place], place))
    forwards: list[list[int]] = []
    for place in order:
        if forwards and lengths[forwards[-1][0]] * (len(forwards[-1]) + 1) <= tokens_per_forward:
            forwards[-1].append(place)
        else:
            forwards.append([place])
    starts = [0, *accumulate(len(s.response_ids) for s in samples)]
    return [_forward(samples, rows, starts) for rows in forwards]


def _forward(samples: Sequence[TrainingSample], rows: list[int], starts: list[int]) -> Forward:
    width = max(len(samples[r].prompt_ids) + len(samples[r].response_ids) for r in rows)
    input_ids = torch.zeros(len(rows), width, dtype=torch.long)
    positions, targets, flat = [], [], []
    for row, place in enumerate(rows):
        sample = samples[place]
        prompt, response = len(sample.prompt_ids), len(sample.response_ids)
        ids = torch.from_numpy(np.concatenate([sample.prompt_ids, sample.response_ids]).astype(np.int64))
        input_ids[row, : prompt + response] = ids
        columns = torch.arange(prompt - 1, prompt + response - 1)
        positions.append(torch.stack([torch.full_like(columns, row), columns], dim=1))
        targets.append(ids[prompt:])
        flat.append(torch.arange(starts[place], starts[place] + response))
    return Forward(input_ids, torch.cat(positions), torch.cat(targets), torch.cat(flat))
